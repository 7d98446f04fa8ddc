"""A run that answers other programs, in the words of OpenAI's clients."""

import json
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import lm_eval
import lm_eval.models
import openai
import pytest
from lm_eval.tasks import TaskManager
from starlette.testclient import TestClient

from dipaco_swarm.algorithm.paths import PathIndex
from dipaco_swarm.client import harness
from dipaco_swarm.client import visits as use
from dipaco_swarm.client.exporting import Wanted, export
from dipaco_swarm.client.sources import open_run
from dipaco_swarm.client.trained_run import TrainedRun
from dipaco_swarm.errors import UsageError
from dipaco_swarm.gateway.app import build_app
from dipaco_swarm.gateway.asked import Asked, Origin, Over, Piece, SilentError, Task, Writer
from dipaco_swarm.gateway.gateway import Gateway
from dipaco_swarm.gateway.own_paths import OwnPaths
from dipaco_swarm.gateway.program import on_this_machine
from dipaco_swarm.run.file import parse_run_file
from dipaco_swarm.simulate import simulate
from dipaco_swarm.training.chat import template_from
from dipaco_swarm.training.inference import Sampling
from dipaco_swarm.training.writing import Written
from tests.pages import HERE
from tests.programs import Program, start

from .conftest import write_run_file

pytestmark = pytest.mark.timeout(300)

REROUTING = "\n[rerouting]\nwindow = 8\nsteps = 10\nbatch_sequences = 8\nmax_documents = 100\n"
PROMPTS = ("def main(", "Permission is hereby granted", "#include <stdio.h>\nint", "x")
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}<me>{% endif %}"
)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a bootstrap node whose run is finished, with two of its four paths trained."""
    folder = tmp_path_factory.mktemp("serving")
    text = write_run_file(folder / "RUN.toml", min_peers=2, inner_steps=4, rounds=2, warmup=2).read_text()
    simulate(parse_run_file(text + REROUTING), folder, {"ada": 0, "ben": 3})
    return folder / "bootstrap"


@pytest.fixture(scope="module")
def run(home: Path) -> Iterator[TrainedRun]:
    with open_run(home) as run:
        yield run


@pytest.fixture(scope="module")
def gateway(run: TrainedRun) -> Gateway:
    return on_this_machine(run)


@pytest.fixture(scope="module")
def client(gateway: Gateway, tmp_path_factory: pytest.TempPathFactory) -> TestClient:
    template = tmp_path_factory.mktemp("template") / "chat.jinja"
    template.write_text(TEMPLATE)
    return TestClient(build_app(lambda: gateway, template=template_from(template)), base_url=HERE)


Ask = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def complete(client: TestClient) -> Ask:
    def ask(prompt: object, **more: Any) -> dict[str, Any]:
        said = client.post("/v1/completions", json={"model": "small", "prompt": prompt, **more})
        assert said.status_code == 200, said.text
        found: dict[str, Any] = said.json()
        return found

    return ask


# ------------------------------------------------------------------------------------------------------ the same text


@pytest.mark.parametrize("how", [{"temperature": 0.0}, {"temperature": 0.8, "top_k": 40, "seed": 3}, {"top_k": 0}])
@pytest.mark.parametrize("window", [None, 4])
def test_it_writes_what_generate_writes(home: Path, complete: Ask, how: dict[str, Any], window: int | None) -> None:
    settings: dict[str, Any] = {"temperature": 0.8, "top_k": 40, "seed": 0, **how}
    for prompt in PROMPTS:
        said = complete(prompt, max_tokens=12, reroute=window, **settings)
        ours = "".join(use.generate(home, prompt, tokens=12, window=window, **settings))
        assert said["choices"][0]["text"] == ours
        assert said["usage"]["completion_tokens"] == 12


def test_what_streams_is_what_comes_at_once(client: TestClient, complete: Ask) -> None:
    asked = {"model": "small", "prompt": list(PROMPTS), "max_tokens": 9, "seed": 5, "n": 2, "stop": ["e", "("]}
    whole = complete(**{key: value for key, value in asked.items() if key != "model"})
    texts, finished = [""] * 8, [None] * 8
    with client.stream("POST", "/v1/completions", json={**asked, "stream": True}) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        events = [line.removeprefix("data: ") for line in stream.iter_lines() if line]
    assert events[-1] == "[DONE]"
    parts = [json.loads(event) for event in events[:-1]]
    assert len({part["id"] for part in parts}) == 1
    for choice in (choice for part in parts for choice in part["choices"]):
        texts[choice["index"]] += choice["text"]
        finished[choice["index"]] = choice["finish_reason"]
    assert texts == [choice["text"] for choice in whole["choices"]]
    assert finished == [choice["finish_reason"] for choice in whole["choices"]]
    assert parts[-1]["dipaco"] == whole["dipaco"]
    assert not any("e" in text or "(" in text for text in texts)


def test_an_answer_says_who_wrote_it_and_can_be_written_again(run: TrainedRun, complete: Ask) -> None:
    said = complete(PROMPTS[0], max_tokens=8)  # drawn, with a seed of the gateway's own
    signed = said["dipaco"][0]
    (writer,) = signed["written_by"]
    states = {str(m): run.state_of(m) for m in run.table.modules_of(PathIndex(writer["path"]))}
    assert writer["modules"] == {module: f"{state.version}:{state.digest}" for module, state in states.items()}
    again = complete(PROMPTS[0], max_tokens=8, seed=signed["seed"])
    assert again["choices"][0]["text"] == said["choices"][0]["text"]


def test_a_path_can_be_asked_by_its_name(client: TestClient) -> None:
    names = [model["id"] for model in client.get("/v1/models").json()["data"]]
    assert names == ["small", *(f"small:path-{path}" for path in range(4))]
    for path, name in enumerate(names[1:]):
        assert client.get(f"/v1/models/{name}").status_code == 200
        said = client.post("/v1/completions", json={"model": name, "prompt": "x", "max_tokens": 1}).json()
        assert said["dipaco"][0]["written_by"][0]["path"] == path
    assert client.get("/v1/models/small:path-4").json()["error"]["code"] == "model_not_found"


def test_top_p_leaves_the_likeliest(complete: Ask) -> None:
    likeliest = complete(PROMPTS[0], max_tokens=8, temperature=0)["choices"][0]["text"]
    assert complete(PROMPTS[0], max_tokens=8, temperature=1, top_p=1e-9, seed=1)["choices"][0]["text"] == likeliest
    assert complete(PROMPTS[0], max_tokens=8, temperature=1, seed=1)["choices"][0]["text"] != likeliest


# ------------------------------------------------------------------------------------------------------- hand-over


class Breaking:
    """A writer that falls silent after some tokens; all of them share the parameters of this machine."""

    def __init__(self, own: Writer, after: int) -> None:
        self._own = own
        self._after = after

    def write(self, task: Task) -> Iterator[Piece]:
        yield from islice(self._own.write(task), self._after)
        raise SilentError("it was killed")

    def think(
        self, path: PathIndex, text: Sequence[int], alternatives: int, over: Over = lambda: False
    ) -> tuple[list[Written], Origin]:
        raise SilentError("it was killed")


def breaking(gateway: Gateway, run: TrainedRun, after: Sequence[int]) -> Gateway:
    """The same gateway, whose writers fall silent one after the other; the last is this machine."""
    own = OwnPaths(run)

    def writers(path: PathIndex) -> Iterator[Writer]:
        yield from (Breaking(own, tokens) for tokens in after)
        yield own

    return Gateway(gateway.name, gateway.num_paths, 32, run.routing(), run.window_router(), writers)


def tokens(gateway: Gateway, asked: Asked) -> list[int]:
    return [piece.written.token for piece in gateway.answer(asked)]


@pytest.mark.parametrize("after", [(0, 0), (1, 5), (19, 1), (20,)])
@pytest.mark.parametrize("window", [None, 6])
def test_who_goes_on_writes_what_would_have_been_written(
    gateway: Gateway, run: TrainedRun, after: tuple[int, ...], window: int | None
) -> None:
    other = breaking(gateway, run, after)
    for sampling in (Sampling(0.9, 40), Sampling(1.0, None, 0.9), Sampling(0.0)):
        for prompt in PROMPTS[:2]:
            asked = Asked(gateway.ids_of(prompt), sampling, 7, 20, window=window)
            assert tokens(other, asked) == tokens(gateway, asked)


@pytest.mark.parametrize("after", [(30,), (61, 7), (64, 1, 31)])
def test_a_text_that_outgrows_the_positions_is_gone_on_with_as_well(
    gateway: Gateway, run: TrainedRun, after: tuple[int, ...]
) -> None:
    asked = Asked(gateway.ids_of(PROMPTS[0]), Sampling(0.9, 40), 7, 120)
    assert tokens(breaking(gateway, run, after), asked) == tokens(gateway, asked)


def test_a_stream_that_breaks_off_ends_with_an_error_and_not_as_if_it_were_whole(
    gateway: Gateway, run: TrainedRun
) -> None:
    own = OwnPaths(run)
    broken = Gateway(gateway.name, 4, 32, run.routing(), None, lambda path: iter([Breaking(own, 2)]))
    client = TestClient(build_app(lambda: broken), base_url=HERE)
    asked = {"model": "small", "prompt": "x", "max_tokens": 5}
    refused = client.post("/v1/completions", json=asked)
    assert refused.status_code == 503
    assert "it was killed" in refused.json()["error"]["message"]
    with client.stream("POST", "/v1/completions", json={**asked, "stream": True}) as stream:
        events = [line for line in stream.iter_lines() if line]
    assert "error" in json.loads(events[-1].removeprefix("data: "))
    assert "data: [DONE]" not in events


# ----------------------------------------------------------------------------------------------------------- manners


def test_conversations_become_prompts_by_the_template(client: TestClient, complete: Ask) -> None:
    messages = [{"role": "system", "content": "Be"}, {"role": "user", "content": [{"type": "text", "text": "hello"}]}]
    asked = {"model": "small", "messages": messages, "max_tokens": 6, "seed": 4, "logprobs": True, "top_logprobs": 2}
    said = client.post("/v1/chat/completions", json=asked).json()
    message = said["choices"][0]["message"]
    assert message["role"] == "assistant"
    assert message["content"] == complete("<system>Be\n<user>hello\n<me>", max_tokens=6, seed=4)["choices"][0]["text"]
    thoughts = said["choices"][0]["logprobs"]["content"]
    assert len(thoughts) == 6
    assert all(len(thought["top_logprobs"]) == 2 for thought in thoughts)


def test_without_a_template_there_is_no_chat_and_it_says_so(gateway: Gateway, tmp_path: Path) -> None:
    asked = {"model": "small", "messages": [{"role": "user", "content": "x"}]}
    said = TestClient(build_app(lambda: gateway), base_url=HERE).post("/v1/chat/completions", json=asked)
    assert said.status_code == 400
    assert "--chat-template" in said.json()["error"]["message"]
    for wrong in ("{% for %}", "{{ raise_exception('no') }}"):
        (tmp_path / "chat.jinja").write_text(wrong)
        with pytest.raises(UsageError, match="chat template"):
            template_from(tmp_path / "chat.jinja")
    with pytest.raises(UsageError, match="cannot be read"):
        template_from(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("asked", "status", "words"),
    [
        ({"model": "other", "prompt": "x"}, 404, "does not exist"),
        ({"model": "small", "prompt": ""}, 400, "empty"),
        ({"model": "small", "prompt": [512]}, 400, "0 to 511"),
        ({"model": "small:path-1", "prompt": "x", "reroute": 4}, 400, "reroute"),
        ({"model": "small"}, 400, "prompt"),
        ([], 400, ""),
    ],
)
def test_what_cannot_be_answered_is_an_error_of_the_dialect(
    client: TestClient, asked: object, status: int, words: str
) -> None:
    said = client.post("/v1/completions", json=asked)
    assert said.status_code == status
    error = said.json()["error"]
    assert words in error["message"]
    assert error["type"] == "invalid_request_error"


def test_a_page_elsewhere_cannot_ask(gateway: Gateway) -> None:
    client = TestClient(build_app(lambda: gateway), base_url=HERE)
    asked = json.dumps({"model": "small", "prompt": "x"})
    assert client.post("/v1/completions", content=asked, headers={"content-type": "text/plain"}).status_code == 415
    for elsewhere in ("elsewhere.example", "testserver"):
        assert client.get("/health", headers={"host": elsewhere}).status_code == 400
    assert client.post("/v1/completions", content=b"x" * (9 << 20), headers=JSON).status_code == 413
    assert client.get("/v1/completions").status_code == 405


JSON = {"content-type": "application/json"}


def test_who_has_no_key_is_told_so(gateway: Gateway) -> None:
    client = TestClient(build_app(lambda: gateway, api_key="open sesame"), base_url=HERE)
    assert client.get("/v1/models").json()["error"]["code"] == "no_key"
    assert client.get("/v1/models", headers={"authorization": "Bearer open"}).status_code == 401
    assert client.get("/v1/models", headers={"authorization": "Bearer open sesame"}).status_code == 200
    assert client.get("/health").status_code == 200


# ------------------------------------------------------------------------------------------ other people's clients


@contextmanager
def serving(home: Path, log: Path) -> Iterator[tuple[Program, str]]:
    """A real gateway, in a process of its own, and its address."""
    program = start("swarm", ["serve", "--home", home, "--port", "0"], log)
    try:
        deadline = time.monotonic() + 60
        while (found := re.search(r"http://127\.0\.0\.1:\d+/v1", log.read_text())) is None:
            assert program.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        yield program, found[0]
    finally:
        program.kill()


@pytest.fixture(scope="module")
def url(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    log = tmp_path_factory.mktemp("gateway") / "log"
    with serving(home, log) as (program, address):
        yield address
        program.send_signal(signal.SIGINT)
        assert program.wait(20) == 0, log.read_text()


def test_openais_client_works_unchanged(home: Path, url: str) -> None:
    client = openai.OpenAI(base_url=url, api_key="none", max_retries=0)
    assert "small" in [model.id for model in client.models.list()]
    how: dict[str, Any] = {"temperature": 0, "max_tokens": 10}
    ours = "".join(use.generate(home, PROMPTS[0], tokens=10, temperature=0, top_k=0, seed=0))
    assert client.completions.create(model="small", prompt=PROMPTS[0], **how).choices[0].text == ours
    stream = client.completions.create(
        model="small", prompt=PROMPTS[0], stream=True, stream_options={"include_usage": True}, **how
    )
    parts = list(stream)
    assert "".join(choice.text for part in parts for choice in part.choices) == ours
    usage = parts[-1].usage
    assert usage is not None
    assert usage.completion_tokens == 10
    with pytest.raises(openai.BadRequestError, match="chat template"):
        client.chat.completions.create(model="small", messages=[{"role": "user", "content": "x"}])
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="large", prompt="x")


LONG: dict[str, Any] = {"model": "small", "prompt": PROMPTS[0], "max_tokens": 8192, "temperature": 0}


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_gateway_that_is_ended_tells_whoever_it_answers(home: Path, tmp_path: Path, how: signal.Signals) -> None:
    log = tmp_path / "log"
    with serving(home, log) as (program, address), ThreadPoolExecutor(1) as pool:
        client = openai.OpenAI(base_url=address, api_key="none", max_retries=0)
        whole = pool.submit(lambda: client.completions.create(**LONG))
        stream = iter(client.completions.create(stream=True, **LONG))
        came = [next(stream).choices[0].text for _ in range(5)]
        program.send_signal(how)
        with pytest.raises(openai.APIError, match="this gateway is being ended; ask again in a minute"):
            came.extend(part.choices[0].text for part in stream)
        with pytest.raises(openai.InternalServerError, match="being ended"):
            whole.result(20)
        assert program.wait(20) == 0, log.read_text()
    assert 5 <= len(came) < 8192
    assert "Traceback" not in log.read_text()


def test_what_breaks_off_when_a_gateway_is_killed_is_not_taken_for_whole(home: Path, tmp_path: Path) -> None:
    with serving(home, tmp_path / "log") as (program, address):
        asked = json.dumps({**LONG, "stream": True})
        curl = ["curl", "-sSN", f"{address}/completions", "-H", "Content-Type: application/json", "-d", asked]
        with subprocess.Popen(curl, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as by_curl:
            assert by_curl.stdout is not None
            assert by_curl.stdout.readline().startswith("data: ")
            stream = iter(openai.OpenAI(base_url=address, api_key="none").completions.create(stream=True, **LONG))
            next(stream)
            program.kill()
            with pytest.raises((httpx.RemoteProtocolError, openai.APIConnectionError)):
                list(stream)
            said, why = by_curl.communicate(timeout=20)
        assert "[DONE]" not in said
        assert by_curl.returncode == 18, why  # as curl says it: transfer closed with outstanding read data remaining


@pytest.mark.long  # the harness, and what the gateway says, each have their own
def test_lm_eval_says_over_the_door_what_it_says_of_the_run(
    home: Path, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = 3
    export(home, path, tmp_path / "path", Wanted())
    documents = [{"text": prompt * 3} for prompt in PROMPTS]
    (tmp_path / "docs.jsonl").write_text("\n".join(map(json.dumps, documents)))
    (tmp_path / "ours.yaml").write_text(
        "task: ours\ndataset_path: json\n"
        f"dataset_kwargs:\n  data_files:\n    test: {tmp_path / 'docs.jsonl'}\n"
        "test_split: test\noutput_type: loglikelihood_rolling\ndoc_to_text: ''\ndoc_to_target: '{{text}}'\n"
        "metric_list:\n  - metric: byte_perplexity\n"
    )
    tasks = TaskManager(include_path=str(tmp_path))
    evaluate = partial(lm_eval.simple_evaluate, tasks=["ours"], task_manager=tasks, bootstrap_iters=0)
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    asked = {
        "model": f"small:path-{path}",
        "base_url": f"{url}/completions",
        "tokenizer": str(tmp_path / "path"),
        "tokenizer_backend": "huggingface",
        "max_length": 64,
    }
    there = evaluate(model="local-completions", model_args=asked)["results"]["ours"]
    here = harness.run_tasks(home, [str(tmp_path / "ours.yaml")], path, None).results["ours"]
    assert there["byte_perplexity,none"] == pytest.approx(here["byte_perplexity,none"], rel=1e-5)
