"""Who asks at the same time is written for in the same passes, and sent together what is there together."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import islice
from typing import Any

import pytest

from dipaco_swarm.gateway import scribe
from dipaco_swarm.gateway.answering import Part
from dipaco_swarm.gateway.app import _events
from dipaco_swarm.gateway.asked import SilentError
from dipaco_swarm.gateway.scribe import Scribe
from dipaco_swarm.training.inference import Sampling
from dipaco_swarm.training.writing import Text, write
from tests.hub import until
from tests.training.test_writing import PROMPTS, network_of, rows_of

GREEDY = Sampling(0.0)


def test_texts_of_several_who_ask_come_in_the_same_passes() -> None:
    network = network_of()
    alone = [
        [word.token for word in islice(write(network, Text(network, prompt, GREEDY, 0)), 10)] for prompt in PROMPTS
    ]
    rows, writer, all_ask = rows_of(network), Scribe(network), threading.Event()
    network.register_forward_pre_hook(lambda module, args: assert_set(all_ask))

    def ask(prompt: list[int]) -> list[int]:
        return [word.token for word, _ in writer.write(Text(network, prompt, GREEDY, 0), 10)]

    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        found = pool.map(ask, PROMPTS)
        until(lambda: len(writer._new) == len(PROMPTS) - 1)
        all_ask.set()
        assert list(found) == alone
    assert sum(rows) >= 50 > 2 * len(rows)  # each is read alone, one after the other, two once more where they are cut
    assert max(rows) == len(PROMPTS)
    until(lambda: writer._thread is None)


def test_the_first_token_is_given_out_at_once_and_those_of_a_moment_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scribe, "PAUSE_SECONDS", 1e9)
    rows = rows_of(network := network_of())
    writer = Scribe(network)
    more = [more for _, more in writer.write(Text(network, [1], GREEDY, 0), 5)]
    assert more[1:-1] == [True] * 3  # the first may be alone, and that it was the last may be said a moment later
    with closing(writer.write(Text(network, [1], GREEDY, 0), 1 << 40)) as words:  # type: ignore[type-var]
        next(words)
        until(lambda: len(rows) > 20)
        list(writer.write(Text(network, [2], GREEDY, 0), 1))  # before it is read, the other gets what is there
        assert len(list(islice(words, 5))) == 5


def assert_set(event: threading.Event) -> None:
    assert event.wait(20)


def test_who_goes_is_written_for_no_more_and_a_failure_is_said_and_over() -> None:
    network = network_of()
    writer = Scribe(network)
    with closing(writer.write(Text(network, [1], GREEDY, 0), 1 << 40)) as words:  # type: ignore[type-var]
        next(words)
    until(lambda: writer._thread is None)

    def fail(*_: Any) -> None:
        raise RuntimeError("no memory")

    handle = network.register_forward_pre_hook(fail)
    with pytest.raises(SilentError, match="this machine could not write it"):
        next(writer.write(Text(network, [1], GREEDY, 0), 3))
    handle.remove()
    assert len(list(writer.write(Text(network, [1], GREEDY, 0), 3))) == 3


def test_events_that_are_there_together_are_sent_together() -> None:
    parts = [Part({"n": 1}, more=True), Part({"n": 2}), Part({"n": 3}), Part({"n": 4}, more=True)]
    sent = list(_events(Part({"n": 0}), (part for part in parts)))
    assert [each.count("data: ") for each in sent] == [1, 2, 1, 2]
    assert sent[-1].endswith('data: {"n": 4}\n\ndata: [DONE]\n\n')

    def breaks() -> Any:
        yield Part({"n": 1}, more=True)
        raise SilentError("gone")

    *_, last = _events(Part({"n": 0}), breaks())
    assert last.startswith('data: {"n": 1}\n\ndata: {"error"')
