"""What a path writes after a text, so that somebody else can go on in the middle; and what it thinks of a text.

Who writes a token has the text so far, how tokens are drawn, a seed, and how many tokens were drawn with it. That is
all there is: whoever has the same parameters writes the same token, whoever wrote the ones before. Several texts are
written side by side, a token of each in one pass of the network.
"""

import inspect
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import DynamicCache, DynamicLayer, PreTrainedModel
from transformers.cache_utils import DynamicSlidingWindowLayer

from dipaco_swarm.training.dipaco_model import Context
from dipaco_swarm.training.inference import Sampling

PASSED_OVER = 256
"""Draws of others that are passed over at once: a tenth or two of a second."""
PART = 256
"""Tokens that are read at once: about a second of a path of 135 million parameters on two cores, where a long text is a
minute. In between others are answered, and who does not listen any more is read no further."""
PART_LOGITS = 1 << 23
"""Logits of tokens that are judged at once: 32 MB, and as much again for their logarithms."""


@dataclass(frozen=True)
class Written:
    """A token, and what its path thought of it."""

    token: int
    logprob: float | None
    """log p of it before temperature, top_k and top_p. None: nothing comes before it."""
    likeliest: tuple[tuple[int, float], ...] = ()
    """The likeliest tokens there, with their log p, as many as were asked for."""


class _Watch:
    """Draws, and keeps what was thought of the last token."""

    def __init__(self, sampling: Sampling, seed: int, vocabulary: int, drawn: int, alternatives: int | None) -> None:
        generator = torch.Generator().manual_seed(seed)
        self._draw = sampling.drawing(generator)
        self._alternatives = alternatives
        self.logprob: float | None = None
        self.likeliest: tuple[tuple[int, float], ...] = ()
        self._generator = generator
        self._alike = torch.ones(min(sampling.top_k or vocabulary, vocabulary))
        self._ahead = drawn if sampling.temperature else 0
        """So many draws by others are yet to be passed over."""

    def pass_over(self, most: int) -> bool:
        """Take the chance that others have drawn with, of so many tokens at most; whether there are more. A draw takes
        as much chance whatever the logits are."""
        now = min(most, self._ahead)
        for _ in range(now):
            torch.multinomial(self._alike, 1, generator=self._generator)
        self._ahead -= now
        return self._ahead > 0

    def __call__(self, logits: Tensor) -> int:
        token = self._draw(logits)
        if self._alternatives is not None:
            logprobs = logits.log_softmax(0)
            self.logprob, self.likeliest = float(logprobs[token]), _likeliest(logprobs, self._alternatives)
        return token


class Text:
    """A text that is being written."""

    def __init__(
        self,
        network: PreTrainedModel,
        text: Sequence[int],
        sampling: Sampling,
        seed: int,
        written: int = 0,
        drawn: int | None = None,
        alternatives: int | None = None,
        end_of_text: int | None = None,
    ) -> None:
        """`network`: whose batch it will be in. `text`: at least one token.

        `written`: so many of its last tokens were written by this path like this; `drawn`: so many were drawn with this
        seed, by this path or others (by default the same). `alternatives`: how many of the likeliest tokens to name;
        None: say nothing of what was thought. It goes on without end unless `end_of_text` comes.
        """
        config = network.config
        drawn = written if drawn is None else drawn
        self.context = Context(text, config.max_position_embeddings, written)
        self._watch = _Watch(sampling, seed, config.vocab_size, drawn, alternatives)
        self._end_of_text = end_of_text

    def pass_over(self, most: int = PASSED_OVER) -> bool:
        """Come to where others have left off drawing, some tokens of the way; whether it is not there yet."""
        return self._watch.pass_over(most)

    def take(self, logits: Tensor) -> Written | None:
        """Its next token, now that the network has read all of it: logits are fp32 (vocabulary,), on the CPU. None: it
        is over."""
        token = self._watch(logits)
        if token == self._end_of_text:
            return None
        self.context.add(token)
        return Written(token, self._watch.logprob, self._watch.likeliest)


class Batch:
    """Texts that one network goes on with side by side. Each is read alone; then a token of each comes in one pass.

    In a pass with others the last bits of a text's logits are not those of a pass alone: matrix products of another
    shape are added up in another order (decision 45).
    """

    def __init__(self, network: PreTrainedModel) -> None:
        self._network = network.eval()
        self._takes_places = "position_ids" in inspect.signature(network.forward).parameters
        self._rows: list[_Rows] = []

    def __len__(self) -> int:
        return sum(len(rows.texts) for rows in self._rows)

    def read(self, text: Text) -> Written | None:
        """Read a text, and write its next token; it stays in the batch. None: it is over, and does not."""
        reading = self.reading(text)
        while True:
            try:
                next(reading)
            except StopIteration as end:
                word: Written | None = end.value
                return word

    @torch.inference_mode()
    def reading(self, text: Text) -> Generator[None, None, Written | None]:
        """The same, a part of the text at a time; it is in the batch at the end."""
        while text.pass_over():
            yield
        if text.context.is_full:
            text.context.cut()
        left, cache = text.context.fresh, _empty_cache(self._network)
        while cache is not None and len(left) > PART:
            _, cache = self._pass([left[:PART]], cache)
            left = left[PART:]
            yield
        logits, cache = self._pass([left], cache)
        word = text.take(logits[0])
        if word is not None:
            self._join(_Rows([text], cache))
        return word

    @torch.inference_mode()
    def go_on(self) -> list[tuple[Text, Written | None]]:
        """A token of each; None, and it leaves: it is over."""
        full = self.take_full()
        found = [each for rows in list(self._rows) for each in self._next(rows)]
        return found + [(text, self.read(text)) for text in full]

    def take_full(self) -> list[Text]:
        """Take out those whose context is full: to go on with one it is cut, and read anew."""
        full = [text for rows in self._rows for text in rows.texts if text.context.is_full]
        for text in full:
            self.remove(text)
        return full

    def remove(self, text: Text) -> None:
        """It is not written any further; one that is not here is passed over."""
        for rows in self._rows:
            if text in rows.texts:
                rows.remove(text)
        self._rows = [rows for rows in self._rows if rows.texts]

    def _next(self, rows: "_Rows") -> list[tuple[Text, Written | None]]:
        texts, seen = list(rows.texts), rows.seen
        how: dict[str, Tensor] = {}
        if len(set(seen)) > 1:
            read = torch.tensor(seen, device=self._network.device)[:, None]
            places = torch.arange(max(seen) + 1, device=self._network.device)
            how = {"attention_mask": (places >= max(seen) - read).long(), "position_ids": read}
        logits, rows.cache = self._pass([text.context.fresh for text in texts], rows.cache, **how)
        found = [(text, text.take(row)) for text, row in zip(texts, logits, strict=True)]
        for text, word in found:
            if word is None:
                self.remove(text)
        return found

    def _pass(self, tokens: list[list[int]], cache: Any, **how: Tensor) -> tuple[Tensor, Any]:
        """Logits after the last token of each row, fp32 (rows, vocabulary) on the CPU, and the cache."""
        inputs = torch.tensor(tokens, device=self._network.device)
        output = self._network(input_ids=inputs, past_key_values=cache, use_cache=True, logits_to_keep=1, **how)
        return output.logits[:, -1].float().cpu(), output.past_key_values

    def _join(self, new: "_Rows") -> None:
        """To others, where caches can lie side by side; to nobody where layers keep a part of what they have read."""
        for rows in self._rows:
            if self._takes_places and rows.is_plain and new.is_plain:
                rows.append(new)
                return
        self._rows.append(new)


@dataclass(eq=False)
class _Rows:
    """Texts that lie in one cache, each to the right: before the shorter ones are empty places."""

    texts: list[Text]
    cache: Any

    @property
    def seen(self) -> list[int]:
        """What the cache has of each text, in tokens."""
        return [text.context.seen for text in self.texts]

    @property
    def is_plain(self) -> bool:
        """Whether each layer has all keys and values, and nothing else."""
        return isinstance(self.cache, DynamicCache) and all(type(layer) is DynamicLayer for layer in self.cache.layers)

    def append(self, new: "_Rows") -> None:
        places = max(self.seen + new.seen)
        self.texts += new.texts
        for ours, theirs in zip(self.cache.layers, new.cache.layers, strict=True):
            ours.keys = torch.cat([_to_the_right(each.keys, places) for each in (ours, theirs)])
            ours.values = torch.cat([_to_the_right(each.values, places) for each in (ours, theirs)])

    def remove(self, text: Text) -> None:
        places = max(self.seen)
        kept = [row for row, each in enumerate(self.texts) if each is not text]
        self.texts = [self.texts[row] for row in kept]
        if not kept:
            return
        empty = places - max(self.seen)
        for layer in self.cache.layers:
            layer.keys, layer.values = (each[kept][..., empty:, :] for each in (layer.keys, layer.values))


def _to_the_right(kept: Tensor, places: int) -> Tensor:
    """Keys or values (rows, heads, tokens, width) with empty places before them: (rows, heads, places, width)."""
    return pad(kept, (0, 0, places - kept.shape[-2], 0))


def write(network: PreTrainedModel, text: Text) -> Iterator[Written]:
    """The tokens that follow a text, one by one, written alone; what ends it is not given out."""
    batch = Batch(network)
    word = batch.read(text)
    while word is not None:
        yield word
        ((_, word),) = batch.go_on()


def think(network: PreTrainedModel, text: Sequence[int], alternatives: int = 0) -> list[Written]:
    """What a path thinks of each token of a text."""
    return [each for part in thoughts(network, text, alternatives) for each in part]


def thoughts(network: PreTrainedModel, text: Sequence[int], alternatives: int = 0) -> Iterator[list[Written]]:
    """The same, a part of the text at a time; one longer than the network's positions is read in pieces, each of which
    begins with half a piece of what comes before, of which nothing is thought again."""
    network.eval()
    positions: int = network.config.max_position_embeddings
    yield [Written(text[0], None)]
    done = 1
    while done < len(text):
        start = 0 if done == 1 else max(0, done - positions // 2)
        piece = text[start : start + positions]
        for before, logits in _logits(network, piece[:-1]):
            first = max(start + before + 1, done)
            rows = logits[first - start - before - 1 :].log_softmax(-1)
            followed = text[first : first + len(rows)]
            yield [
                Written(token, float(row[token]), _likeliest(row, alternatives))
                for token, row in zip(followed, rows, strict=True)
            ]
        done = start + len(piece)


@torch.inference_mode()
def _logits(network: PreTrainedModel, text: Sequence[int]) -> Iterator[tuple[int, Tensor]]:
    """After each token of a text, a part of it at a time: how many come before, and fp32 (tokens, vocabulary) on the
    CPU. All at once they would be the largest tensor of all: 1.6 GB, for 8,192 tokens and a vocabulary of 49,152."""
    cache = _empty_cache(network)
    size = max(1, min(PART, PART_LOGITS // network.config.vocab_size))
    for start in range(0, len(text), size):
        part = text[start : start + size]
        read = part if cache is not None else text[: start + size]  # what keeps nothing of a text reads it again
        inputs = torch.tensor([list(read)], device=network.device)
        how: dict[str, Any] = {"use_cache": False} if cache is None else {"past_key_values": cache, "use_cache": True}
        yield start, network(input_ids=inputs, logits_to_keep=len(part), **how).logits[0].float().cpu()


def _empty_cache(network: PreTrainedModel) -> DynamicCache | None:
    """With it a text can be read in parts of any length. None: some layer keeps something else than keys and values,
    and whether it goes on with more than one token at a time depends on the network."""
    if "past_key_values" not in inspect.signature(network.forward).parameters:
        return None
    cache = DynamicCache(config=network.config)
    known = all(type(layer) in (DynamicLayer, DynamicSlidingWindowLayer) for layer in cache.layers)
    return cache if known else None


@torch.inference_mode()
def differences(
    network: PreTrainedModel,
    text: Sequence[int],
    written: int,
    sampling: Sampling,
    seed: int,
    drawn: int,
) -> int | None:
    """How many of the last `written` tokens of a text this path would have drawn otherwise; None: it is too long.

    `drawn`: tokens that were drawn with the seed before these. One pass over the text, however many there are.
    """
    network.eval()
    if len(text) > network.config.max_position_embeddings:
        return None  # its context was cut on the way
    watch = _Watch(sampling, seed, network.config.vocab_size, drawn, None)
    watch.pass_over(drawn)
    inputs = torch.tensor([list(text[:-1])], device=network.device)
    logits = network(input_ids=inputs, use_cache=False, logits_to_keep=written).logits[0].float().cpu()
    return sum(watch(row) != token for row, token in zip(logits, text[-written:], strict=True))


def _likeliest(logprobs: Tensor, count: int) -> tuple[tuple[int, float], ...]:
    if not count:
        return ()
    top = logprobs.topk(min(count, len(logprobs)))
    return tuple(zip(top.indices.tolist(), top.values.tolist(), strict=True))
