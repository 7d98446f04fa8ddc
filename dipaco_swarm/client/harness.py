"""lm-evaluation-harness on a path or on the whole routed model: the tasks, prompts and metrics that others use.

The harness asks for log-likelihoods of texts and for text; here each text is read by the path that its first tokens are
routed to, or by one path. `import dipaco_swarm.client.harness` also makes the model "dipaco" known to the harness, for
exported folders: `lm_eval.simple_evaluate(model="dipaco", model_args="folder=model", tasks=[...])`.
"""

import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import lm_eval
import numpy as np
import torch
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.tasks import TaskManager
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from rich.console import Group, RenderableType
from rich.text import Text

from dipaco_swarm.algorithm.paths import PathIndex
from dipaco_swarm.client.sources import Source, open_run
from dipaco_swarm.client.trained_run import TrainedRun
from dipaco_swarm.dashboard.shapes import QUIET, frame, table_of
from dipaco_swarm.errors import DataError, UsageError
from dipaco_swarm.training.dipaco_model import RoutedModel, drawing, tokens_after
from dipaco_swarm.training.tokenizer import begin_of_text_ids, end_of_text_id, prompt_ids

SEQUENCES_AT_ONCE = 8
NEW_TOKENS = 256
"""Of a text that the harness asks for without saying how long."""
LONGEST = 1e9
RESAMPLES = 1000
"""Behind the standard errors that are not a formula."""


class Reader(Protocol):
    """What reads and writes: all paths of a model, with whatever chooses among them."""

    end_of_text: int
    prefix_tokens: int

    def encode(self, text: str) -> list[int]:
        """With what stands before every text; empty for an empty one, or that alone."""
        ...

    def decode(self, ids: Sequence[int]) -> str: ...

    def route(self, ids: Sequence[int]) -> int: ...

    def path(self, path: int) -> Any:
        """A transformers network; the next call may turn it into another."""
        ...


class RunReader:
    """`Reader` over a run."""

    def __init__(self, run: TrainedRun) -> None:
        self._run = run
        self._routing = run.routing()
        self._model = run.model()
        self._loaded: int | None = None
        self.end_of_text = end_of_text_id(self._routing.tokenizer)
        self.prefix_tokens = run.manifest.config.router.prefix_tokens

    def encode(self, text: str) -> list[int]:
        return prompt_ids(self._routing.tokenizer, text) or begin_of_text_ids(self._routing.tokenizer)

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self._routing.tokenizer.decode(list(ids), skip_special_tokens=True)
        return text

    def route(self, ids: Sequence[int]) -> int:
        return int(self._routing.paths(np.array([list(ids)[: self.prefix_tokens]], dtype=np.int64))[0])

    def path(self, path: int) -> Any:
        if path != self._loaded:
            self._run.load(self._model, PathIndex(path))
            self._loaded = path
        return self._model.network


@dataclass(frozen=True)
class _Asked:
    """How likely is `continuation` after `context`, for this path?"""

    path: int
    context: list[int]
    continuation: list[int]


@register_model("dipaco")
class DipacoLM(TemplateLM):  # type: ignore[misc] # lm_eval has no types
    """What the harness asks, answered by paths."""

    def __init__(
        self, folder: str | None = None, path: int | None = None, reader: Reader | None = None, **_: Any
    ) -> None:
        """`folder`: an exported model; or `reader`. `path`: this one reads everything; by default texts are routed."""
        super().__init__()
        if reader is None:
            if folder is None:
                raise UsageError("say which model: folder=DIR, as dipaco-swarm export wrote it")
            reader = RoutedModel.from_pretrained(folder)
        self._reader = reader
        self._path = None if path is None else int(path)
        self._begin = reader.encode("")

    @property
    def eot_token_id(self) -> int:
        return self._reader.end_of_text

    @property
    def prefix_token_id(self) -> int:
        """What stands before a text of which the first token is to be scored as well."""
        return self._begin[-1] if self._begin else self._reader.end_of_text

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        ids = self._reader.encode(string)
        return ids[len(self._begin) :] if add_special_tokens is False else ids

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """Of whole texts, every token counted once; a text has one path, however long it is."""
        sums: list[float] = []
        for request in requests:
            ids = self.tok_encode(request.args[0], add_special_tokens=False)
            path = self._path_of([*self._begin, *ids])
            length = self._reader.path(path).config.max_position_embeddings
            windows = get_rolling_token_windows(ids, self.prefix_token_id, length, 1)
            asked = [_Asked(path, list(c), list(t)) for c, t in map(make_disjoint_window, windows)]
            sums.append(sum(likelihood for likelihood, _ in self._answers(asked)))
        return sums

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        return [self._written(*request.args) for request in requests]

    def _loglikelihood_tokens(self, requests: Sequence[Any], **_: Any) -> list[tuple[float, bool]]:
        asked = []
        for _texts, context, continuation in requests:
            # a continuation chooses no path, unless there is nothing else: all answers to a question are read by one
            known = context if len(context) > 1 or context != [self.prefix_token_id] else [*self._begin, *continuation]
            asked.append(_Asked(self._path_of(known), context, continuation))
        return self._answers(asked)

    def _path_of(self, ids: Sequence[int]) -> int:
        if self._path is not None:
            return self._path
        return self._reader.route(list(ids)[: self._reader.prefix_tokens]) if ids else 0

    def _written(self, context: str, how: Mapping[str, Any]) -> str:
        until = [how["until"]] if isinstance(how.get("until"), str) else list(how.get("until") or [])
        ids = self._reader.encode(context)
        temperature = float(how.get("temperature") or 0) if how.get("do_sample") else 0.0
        network = self._reader.path(self._path_of(ids))
        tokens = tokens_after(network, ids, drawing(temperature, None, 0), self._reader.end_of_text)
        new: list[int] = []
        for token in islice(tokens, int(how.get("max_gen_toks") or NEW_TOKENS)):
            new.append(token)
            text = self._reader.decode(new)
            if any(stop in text for stop in until):
                break
        text = self._reader.decode(new)
        return min((text.split(stop)[0] for stop in until), key=len, default=text)

    def _answers(self, asked: Sequence[_Asked]) -> list[tuple[float, bool]]:
        """The log-likelihood of each continuation, and whether it is the likeliest one; path by path, by length."""
        found: dict[int, tuple[float, bool]] = {}
        order = sorted(range(len(asked)), key=lambda i: (asked[i].path, len(asked[i].context + asked[i].continuation)))
        while order:
            path = asked[order[0]].path
            batch = [i for i in order[:SEQUENCES_AT_ONCE] if asked[i].path == path]
            found.update(zip(batch, _scored(self._reader.path(path), [asked[i] for i in batch]), strict=True))
            order = order[len(batch) :]
        return [found[i] for i in range(len(asked))]


@torch.inference_mode()
def _scored(network: Any, batch: Sequence[_Asked]) -> Iterator[tuple[float, bool]]:
    network.eval()
    longest = network.config.max_position_embeddings + 1
    rows = [(each.context + each.continuation)[-longest:] for each in batch]
    width = max(map(len, rows))
    padded = torch.zeros(len(rows), width - 1, dtype=torch.int64)
    for row, ids in zip(padded, rows, strict=True):
        row[: len(ids) - 1] = torch.tensor(ids[:-1])
    logits = network(input_ids=padded.to(network.device), use_cache=False).logits
    for each, ids, row in zip(batch, rows, logits, strict=True):
        count = min(len(each.continuation), len(ids) - 1)
        targets = torch.tensor(ids[len(ids) - count :], device=row.device)
        scores = row[len(ids) - 1 - count : len(ids) - 1].float().log_softmax(-1)
        likelihood = scores.gather(1, targets[:, None]).sum(dtype=torch.float64)
        yield float(likelihood), bool((scores.argmax(-1) == targets).all())


# ------------------------------------------------------------------------------------------------------------- a visit


@dataclass(frozen=True)
class Tasks:
    """What the harness found."""

    run: str
    who: str
    """Which path, or that texts were routed."""
    results: Mapping[str, Mapping[str, float | str]]
    """Of each task, by the name of the metric."""

    def to_json(self) -> str:
        return json.dumps({"run": self.run, "who": self.who, "results": self.results}, indent=2)

    def __rich__(self) -> RenderableType:
        table = table_of("task", "metric", "value", "standard error")
        for task, metrics in self.results.items():
            for name, value in metrics.items():
                if isinstance(value, float | int) and "_stderr," not in name:
                    error = metrics.get(name.replace(",", "_stderr,", 1))
                    said = f"{error:.4f}" if isinstance(error, float) else ""
                    table.add_row(
                        task,
                        name.removesuffix(",none"),
                        f"{value:,.4f}" if abs(value) < LONGEST else f"{value:.4e}",
                        said,
                    )
        return frame(Text(f"{self.run}  ·  lm-evaluation-harness"), Group(Text(self.who, QUIET), Text(), table))


def run_tasks(
    source: Source, names: Sequence[str], path: int | None, limit: int | None, *, best: bool = False
) -> Tasks:
    """Let the harness evaluate a run on these tasks: names that it knows, or .yaml files of tasks.

    `path`: one path; by default the routed model. `limit`: documents of each task. Raises UsageError for a task that
    there is not, and DataError when its documents cannot be had.
    """
    with open_run(source, best=best) as run:
        if path is not None:
            run.load(run.model(), PathIndex(path))  # that there is no such path is found before the slow part
        model = DipacoLM(reader=RunReader(run), path=path)
        who = (
            f"path {path} alone"
            if path is not None
            else f"{run.table.num_paths} paths, texts routed by their beginning"
        )
        with _quiet():
            return Tasks(run.manifest.config.name, who, evaluate_tasks(model, names, limit))


def evaluate_tasks(model: TemplateLM, names: Sequence[str], limit: int | None) -> dict[str, dict[str, float | str]]:
    """The harness's figures for each task. Raises UsageError or DataError."""
    files = [Path(name) for name in names if name.endswith((".yaml", ".yml"))]
    wanted = [_task_in(Path(name)) if Path(name) in files else name for name in names]  # first: the next takes long
    folders = sorted({str(file.resolve().parent) for file in files})
    # its own tasks are thousands of files to be read
    manager = TaskManager(include_path=folders or None, include_defaults=len(files) < len(names))
    if unknown := sorted(set(wanted) - set(manager.all_tasks)):
        raise UsageError(
            f"lm-evaluation-harness has no {', '.join(unknown)}; `lm_eval ls tasks` lists them; or name a .yaml file"
        )
    try:
        found = lm_eval.simple_evaluate(
            model=model, tasks=wanted, limit=limit, task_manager=manager, log_samples=False, bootstrap_iters=RESAMPLES
        )
    except (OSError, ValueError) as error:
        reason = str(error).strip().split("\n")[0]
        raise DataError(f"the documents of {', '.join(wanted)} cannot be read: {reason[:300]}") from None
    return {
        task: {name: value for name, value in metrics.items() if name != "alias"}
        for task, metrics in found["results"].items()
    }


def _task_in(file: Path) -> str:
    """The name of the task that a file describes."""
    try:
        found = re.search(r"^task:\s*[\"']?([\w.-]+)", file.read_text(encoding="utf-8"), re.MULTILINE)
    except OSError as error:
        raise UsageError(f"the task {file} cannot be read: {error.strerror}") from None
    if found is None:
        raise UsageError(f"{file} does not say `task: NAME`, as a task of lm-evaluation-harness does")
    return found[1]


@contextmanager
def _quiet() -> Iterator[None]:
    """The harness talks about its defaults."""
    logger = logging.getLogger("lm_eval")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
