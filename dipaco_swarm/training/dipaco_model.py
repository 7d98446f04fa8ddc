"""Use a DiPaCo model that was exported whole: many paths, the modules that they share, and the router between them.

    from dipaco_model import RoutedModel          # this file lies in the model's folder

    model = RoutedModel.from_pretrained("path/to/the/folder")       # or a name on the Hugging Face hub
    print(model.generate("Once upon a time", max_new_tokens=50))

    python dipaco_model.py "Once upon a time"     # the same, from a shell, with the folder that this file is in

Needs torch and transformers (4.57 or 5) and nothing else. In memory are one path at a time and the small model that the
router reads with; a path is put together of its modules' files when a text is routed to it.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

LAYOUT = "dipaco.json"
"""The file that says which others there are."""
FORMAT = 1

Draw = Callable[[Tensor], int]
"""A token from logits, fp32 (vocabulary,) on the CPU."""


class RoutedModel:
    """A model of several paths. A text is routed by its first tokens, and its path reads and writes it."""

    def __init__(self, folder: str | Path, device: str = "cpu", dtype: torch.dtype = torch.float32) -> None:
        """`dtype`: that paths compute in. The router always reads in fp32, so that a text's path is the run's."""
        self.folder = Path(folder)
        self.layout: dict[str, Any] = json.loads((self.folder / LAYOUT).read_text(encoding="utf-8"))
        if self.layout["format"] != FORMAT:
            raise ValueError(
                f"{self.folder} has format {self.layout['format']}; this file reads {FORMAT}: take its own"
            )
        self.tokenizer = AutoTokenizer.from_pretrained(str(self.folder))
        self.prefix_tokens: int = self.layout["prefix_tokens"]
        self.end_of_text: int = self.layout["end_of_text"]
        self.device = device
        self._network = _empty_network(self.folder).to(device=device, dtype=dtype)
        self._files: list[str] = [""] * len(self.layout["paths"][0])
        """Whose parameters each level of the network has."""
        self._router = _Router(self.folder, device) if self.layout["router"] else None
        self._window_router: _WindowRouter | None = None

    @classmethod
    def from_pretrained(cls, name: str, revision: str | None = None, **how: Any) -> "RoutedModel":
        """A folder, or the name of a model on the Hugging Face hub. `how`: see `__init__`."""
        if not Path(name).is_dir():
            from huggingface_hub import snapshot_download

            name = snapshot_download(name, revision=revision)
        return cls(name, **how)

    @property
    def num_paths(self) -> int:
        return len(self.layout["paths"])

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, with what stands before every text."""
        # it warns of texts that are longer than the model reads; they are read in pieces
        ids: list[int] = self.tokenizer(text, verbose=False)["input_ids"]
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, without what only marks its ends."""
        text: str = self.tokenizer.decode(list(ids), skip_special_tokens=True)
        return text

    def route(self, ids: Sequence[int]) -> int:
        """The path for a text, by its first tokens."""
        return 0 if self._router is None else self._router.route(ids[: self.prefix_tokens])

    def path(self, path: int) -> Any:
        """The transformers model of a path. It is one network: the next call turns it into another path."""
        parameters = dict(self._network.named_parameters())
        for level, file in enumerate(self.layout["paths"][path]):
            if self._files[level] != file:
                with safe_open(str(self.folder / file), framework="pt") as opened, torch.no_grad():
                    for name in opened.keys():  # noqa: SIM118 - it is no dict
                        parameters[name].copy_(opened.get_tensor(name))
                self._files[level] = file
        return self._network

    def generate(
        self,
        prompt: str,
        max_new_tokens: int = 128,
        temperature: float = 0.8,
        top_k: int | None = 40,
        seed: int = 0,
        window: int | None = None,
    ) -> str:
        """The prompt and what follows it. `temperature` 0 takes the likeliest token; `window`: see `tokens`."""
        ids = self.encode(prompt)
        new = islice(self.tokens(ids, drawing(temperature, top_k, seed), window), max_new_tokens)
        return prompt + self.decode(list(new))

    def tokens(self, ids: Sequence[int], draw: Draw, window: int | None = None) -> Iterator[int]:
        """The tokens that follow, one by one, until the text ends.

        `window`: choose a path anew every so many tokens, if the model has a router for that; None: once.
        """
        first = self.route(ids)
        if window is None:
            yield from tokens_after(self.path(first), ids, draw, self.end_of_text)
            return
        router = self._rerouting()
        if len(ids) > self.prefix_tokens:
            first = router.choose(ids)
        yield from rerouted_tokens(first, router.choose, self.path, window, ids, draw, self.end_of_text)

    @torch.inference_mode()
    def log_likelihoods(self, ids: Sequence[int], path: int | None = None) -> Tensor:
        """log p of each token but the first, given those before it: fp32 (tokens - 1,).

        `path`: by default that of the text's first tokens. At most as many tokens as the model has positions.
        """
        network = self.path(self.route(ids) if path is None else path).eval()
        inputs = torch.tensor([list(ids)], device=self.device)
        logits = network(input_ids=inputs, use_cache=False).logits[0, :-1].float()
        found: Tensor = logits.log_softmax(-1).gather(1, inputs[0, 1:, None])[:, 0].cpu()
        return found

    def perplexity(self, texts: Sequence[str]) -> float:
        """Of the tokens behind those that the router reads, in pieces of the length that the model was trained with."""
        length, total, count = self.layout["sequence_length"], 0.0, 0
        for text in texts:
            ids = self.encode(text)
            for piece in (ids[start : start + length] for start in range(0, len(ids), length)):
                if len(piece) > self.prefix_tokens:
                    scored = self.log_likelihoods(piece)[max(self.prefix_tokens, 1) - 1 :]
                    total, count = total + float(scored.sum(dtype=torch.float64)), count + len(scored)
        return float(np.exp(-total / count)) if count else float("nan")

    def _rerouting(self) -> "_WindowRouter":
        if self.layout["window_router"] is None:
            raise ValueError("this model was exported without a window router; leave out `window`")
        if self._window_router is None:
            self._window_router = _WindowRouter(self.folder / self.layout["window_router"], self.folder, self.device)
        return self._window_router


# ------------------------------------------------------------------------------------------------------------- routing


class _Router:
    """The nearest path takes a text; what is near is measured on the mean hidden state of its first tokens."""

    def __init__(self, folder: Path, device: str) -> None:
        layout = json.loads((folder / LAYOUT).read_text(encoding="utf-8"))
        self._body = _empty_network(folder).base_model.to(device).eval()
        _fill(self._body, load_file(str(folder / layout["features"])))
        self._arrays = {name: tensor.numpy() for name, tensor in load_file(str(folder / layout["router"])).items()}
        self._device = device

    @torch.inference_mode()
    def route(self, prefix: Sequence[int]) -> int:
        hidden = self._body(input_ids=torch.tensor([list(prefix)], device=self._device)).last_hidden_state
        return nearest_path(self._arrays, hidden.float().mean(dim=1)[0].cpu().numpy())


def nearest_path(arrays: dict[str, Any], feature: Any) -> int:
    """The path whose centroids are nearest to a feature, fp32 (hidden,); a tie goes to the lowest path."""
    components = arrays["components"].astype(np.float64)
    z = (feature.astype(np.float64) - arrays["mean"]) @ components.T * arrays["scale"]
    distance = arrays["bias"].astype(np.float64)
    for factor in range(arrays["lookup"].shape[1]):
        centroids = arrays[f"factor{factor}.centroids"].astype(np.float64)
        part = z[arrays[f"factor{factor}.components"]]
        to_each = (part**2).sum() - 2 * (part @ centroids.T) + (centroids**2).sum(1)
        distance = distance + to_each[arrays["lookup"][:, factor]]
    return int(distance.argmin())


class _WindowRouter:
    """A transformer with a head of paths: which of them should write what comes next."""

    def __init__(self, file: Path, folder: Path, device: str) -> None:
        tensors = load_file(str(file))
        self._weight, self._bias = tensors.pop("head.weight").to(device), tensors.pop("head.bias").to(device)
        self._body = _empty_network(folder).base_model.to(device).eval()
        _fill(self._body, {name.removeprefix("body."): tensor for name, tensor in tensors.items()})
        self._device = device

    @torch.inference_mode()
    def choose(self, ids: Sequence[int]) -> int:
        """The path for what follows a text; of one longer than the model's positions, for what follows its end."""
        inputs = torch.tensor([list(ids)[-self._body.config.max_position_embeddings :]], device=self._device)
        last = self._body(input_ids=inputs, use_cache=False).last_hidden_state[0, -1]
        return int((self._weight @ last + self._bias).argmax())


# ---------------------------------------------------------------------------------------------------------- generation


def drawing(temperature: float, top_k: int | None, seed: int | torch.Generator, top_p: float = 1.0) -> Draw:
    """How tokens are drawn: the likeliest with temperature 0, or less than a millionth, where logits would have no end;
    else among the `top_k` likeliest, None or 0: among all.

    `seed`: the same one gives the same tokens; or a generator on the CPU. `top_p`: of those only the likeliest that
    have this probability together.
    """
    generator = seed if isinstance(seed, torch.Generator) else torch.Generator().manual_seed(seed)

    def draw(logits: Tensor) -> int:
        if temperature < 1e-6:
            return int(logits.argmax())
        logits = logits / temperature
        if top_k and top_k < len(logits):
            likeliest = logits.topk(top_k)
            chances = _of_most(likeliest.values.softmax(0), top_p)
            return int(likeliest.indices[torch.multinomial(chances, 1, generator=generator)])
        return int(torch.multinomial(_of_most(logits.softmax(0), top_p), 1, generator=generator))

    return draw


def _of_most(chances: Tensor, top_p: float) -> Tensor:
    """Without what is not among the likeliest that have `top_p` together, (tokens,); what is left sums to less."""
    if top_p >= 1:
        return chances
    ordered = chances.sort(descending=True)
    left_out = ordered.values.cumsum(0) - ordered.values >= top_p
    left_out[0] = False
    return chances.scatter(0, ordered.indices, ordered.values.masked_fill(left_out, 0.0))


def tokens_after(
    network: Any, prompt: Sequence[int], draw: Draw, stop_token: int | None, written: int = 0
) -> Iterator[int]:
    """The tokens that follow the prompt, one by one, without end unless `stop_token` comes (it is not given out).

    A context longer than the network's positions is cut to its last half, now and then, so that the text can go on.
    `written`: so many tokens at the end of the prompt were written from what comes before, by somebody who wrote like
    this; the text goes on as his would have.
    """
    network.eval()
    context, cache = Context(prompt, network.config.max_position_embeddings, written), None
    while True:
        if context.is_full:
            context.cut()
            cache = None
        with torch.inference_mode():
            inputs = torch.tensor([context.fresh], device=network.device)
            output = network(input_ids=inputs, past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache = output.past_key_values
        token = draw(output.logits[0, -1].float().cpu())
        if token == stop_token:
            return
        context.add(token)
        yield token


class Context:
    """What a network has read of a text that grows (its cache holds that), and what it has to read next.

    One that is longer than the network's positions is cut to its last half, now and then, so that the text can go on.
    """

    def __init__(self, prompt: Sequence[int], positions: int, written: int = 0) -> None:
        """`written`: as for `tokens_after`."""
        self.ids = list(prompt)
        self.fresh = self.ids[-_context(len(self.ids) - written, written, positions) :]
        """Tokens that are not read yet."""
        self.seen = 0
        """Tokens that are."""
        self._positions = positions

    @property
    def is_full(self) -> bool:
        return self.seen + len(self.fresh) > self._positions

    def cut(self) -> None:
        """Begin anew with the last half, and an empty cache."""
        self.fresh, self.seen = self.ids[-(self._positions // 2) :], 0

    def add(self, token: int) -> None:
        """What was fresh is read, and this was written after it."""
        self.seen += len(self.fresh)
        self.ids.append(token)
        self.fresh = [token]


def _context(prompt: int, written: int, positions: int) -> int:
    """How many tokens the context has that `written` tokens after a prompt were written from, and all of these."""
    seen, fresh = 0, min(prompt, positions)
    for _ in range(written):
        seen, fresh = (seen + fresh, 1) if seen + fresh <= positions else (positions // 2, 1)
    return seen + fresh


def rerouted_tokens(
    first: int,
    choose: Callable[[Sequence[int]], int],
    load_path: Callable[[int], Any],
    window: int,
    prompt: Sequence[int],
    draw: Draw,
    stop_token: int | None,
) -> Iterator[int]:
    """`tokens_after` with the path chosen anew after every `window` new tokens; `first` writes the first ones.

    `choose` reads all tokens there are. While it stays with a path, that path's cache is kept; when it changes, the new
    path reads the text anew. `load_path` is called when the path changes; its network is not used after the next call.
    """
    ids, path = list(prompt), first
    tokens = tokens_after(load_path(path), ids, draw, stop_token)
    while True:
        before = len(ids)
        for token in islice(tokens, window):
            ids.append(token)
            yield token
        if len(ids) < before + window:  # the stop token
            return
        if (chosen := choose(ids)) != path:
            path = chosen
            tokens = tokens_after(load_path(path), ids, draw, stop_token)


# ------------------------------------------------------------------------------------------------------------- networks


def _empty_network(folder: Path) -> Any:
    """A path's network, fp32, before its parameters are loaded."""
    config = AutoConfig.from_pretrained(str(folder))
    # where attention has a soft cap, only the explicit implementation has it too
    how = {"attn_implementation": "eager"} if getattr(config, "attn_logit_softcapping", None) else {}
    return AutoModelForCausalLM.from_config(config, **how).float().eval()


def _fill(network: Any, tensors: dict[str, Tensor]) -> None:
    parameters = dict(network.named_parameters())
    if set(parameters) != set(tensors):
        raise ValueError(f"a file of this model does not fit: {sorted(set(parameters) ^ set(tensors))[:3]}")
    with torch.no_grad():
        for name, tensor in tensors.items():
            parameters[name].copy_(tensor)


def main() -> None:
    """Text from a shell."""
    parser = argparse.ArgumentParser(description="Text from the model in this file's folder.")
    parser.add_argument("prompt")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--top-k", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--reroute", type=int, metavar="W", help="choose a path anew every W tokens")
    said = parser.parse_args()
    model = RoutedModel(Path(__file__).parent)
    text = model.generate(said.prompt, said.tokens, said.temperature, said.top_k, said.seed, said.reroute)
    print(text)  # noqa: T201 - that is what it is for


if __name__ == "__main__":
    main()
