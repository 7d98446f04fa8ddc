"""A text is gone on with by the next writer where one does not go on, or says what is no text."""

from collections.abc import Iterator

from dipaco_swarm.gateway.asked import Asked, Piece, Task
from dipaco_swarm.training.inference import Sampling
from dipaco_swarm.training.writing import Written
from tests.gateway.scripted import Script, gateway_of, origin_of
from tests.gateway.test_words import TOKENIZER


class Nonsense(Script):
    """Writes a token as its path would, and then one that does not exist."""

    def write(self, task: Task) -> Iterator[Piece]:
        yield next(super().write(task))
        yield Piece(Written(1 << 23, None), origin_of(task.path))


def test_a_token_that_does_not_exist_is_in_no_text() -> None:
    honest = Script("abcd")
    gateway = gateway_of(honest)
    honest.gate.set()
    gateway._writers = lambda path: iter([Nonsense("abcd"), honest])
    written = [piece.written.token for piece in gateway.answer(Asked((5,), Sampling(1.0), 7, 3))]
    assert written == TOKENIZER.encode("abcd").ids[:3]
    (task,) = honest.asked
    assert task.text == (5, written[0])


class Nothing(Script):
    """Says at once that the text is over."""

    def write(self, task: Task) -> Iterator[Piece]:
        self.asked.append(task)
        yield from ()


def test_that_a_text_is_over_before_its_first_token_two_have_to_say() -> None:
    honest = Script("abcd")
    gateway = gateway_of(honest)
    honest.gate.set()
    question = Asked((5,), Sampling(1.0), 7, 3)
    gateway._writers = lambda path: iter([Nothing("abcd"), honest])
    assert [piece.written.token for piece in gateway.answer(question)] == TOKENIZER.encode("abcd").ids[:3]
    third = Nothing("abcd")
    gateway._writers = lambda path: iter([Nothing("abcd"), Nothing("abcd"), third])
    assert list(gateway.answer(question)) == []
    assert not third.asked
    gateway._writers = lambda path: iter([Nothing("abcd")])
    assert list(gateway.answer(question)) == []


def test_it_is_noted_whether_a_text_is_over() -> None:
    honest = Script("abcd")
    gateway = gateway_of(honest)
    honest.gate.set()
    noted: list[tuple[int, bool]] = []
    gateway._writers = lambda path: iter([honest])
    gateway._note = lambda writer, task, pieces, ended: noted.append((len(pieces), ended))
    for most in (3, 50):
        list(gateway.answer(Asked((5,), Sampling(1.0), 7, most)))
    all_of_it = len(TOKENIZER.encode("abcd").ids)
    assert noted == [(3, False), (all_of_it, True)]
