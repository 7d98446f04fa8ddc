"""A path as a network: build it, and move modules in and out of it as flat vectors.

The parameters of a level are laid out in the order of their names, each flattened in C order. That order is part of
the protocol: peers exchange these vectors and nothing tells a parameter from the next but its place.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from dipaco_swarm.algorithm.eager import Way, pieces_of
from dipaco_swarm.errors import ManifestError, in_short
from dipaco_swarm.machine.memory import take_large_pages
from dipaco_swarm.run.config import LevelConfig, ModelConfig

NamedParameters = tuple[tuple[str, nn.Parameter], ...]
"""Parameters with their names in the network, sorted by name."""

RESIDUAL_OUTPUTS = ("o_proj", "down_proj", "out_proj", "c_proj", "attention.dense", "dense_4h_to_h")
"""How Llama-style architectures call the matrices whose output is added to the residual stream."""

NO_SPECIAL_TOKENS: dict[str, None] = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
OLDER_NAMES = ("rope_theta", "rope_scaling")
"""What transformers 4 called parts of rope_parameters; both ways to write them are understood."""


# --------------------------------------------------------------------------------------------------- building a network


def build_network(model: ModelConfig, vocab_size: int, seed: int) -> PreTrainedModel:
    """A path's network with fresh fp32 parameters on the CPU; equal arguments give equal parameters.

    The global random generators are left as they were. Raises ManifestError when transformers does not know
    `model.model_type`, refuses a field, or builds something that cannot be cut into embedding, blocks and head.
    """
    with torch.random.fork_rng(devices=[]):
        network = _bare_network(model, vocab_size)
    _initialize(network, torch.Generator().manual_seed(seed))
    return network


def decay_places(
    model: ModelConfig, levels: Sequence[LevelConfig], vocab_size: int, ratios: Mapping[str, float]
) -> tuple[tuple[tuple[int, float], ...], ...]:
    """Where weights decay in a module of each level (`algorithm/weight_decay.py`): nothing is allocated.

    `ratios`: learning rates by the kind of a group, as multiples of the base one. Raises ManifestError as
    `build_network`.
    """
    path = _outline(model, levels, vocab_size)
    return tuple(path.decay_places(level, ratios) for level in range(path.num_levels))


def level_sizes(model: ModelConfig, levels: Sequence[LevelConfig], vocab_size: int) -> tuple[int, ...]:
    """Parameters of each level of a path of any size: nothing is allocated. Raises ManifestError as `build_network`."""
    path = _outline(model, levels, vocab_size)
    return tuple(map(path.size, range(path.num_levels)))


def buffer_bytes(model: ModelConfig, vocab_size: int) -> int:
    """What a path's network has in memory beside its parameters: nothing is allocated. Raises as `build_network`."""
    with torch.device("meta"):
        network = _bare_network(model, vocab_size)
    return sum(buffer.numel() * buffer.element_size() for buffer in network.buffers())


def _outline(model: ModelConfig, levels: Sequence[LevelConfig], vocab_size: int) -> "PathModel":
    """A path without numbers: nothing is allocated. Raises ManifestError as `build_network`."""
    with torch.device("meta"):
        return PathModel(_bare_network(model, vocab_size), levels)


def _bare_network(model: ModelConfig, vocab_size: int) -> PreTrainedModel:
    """With the parameters that transformers gives it. Raises ManifestError."""
    config = _network_config(model, vocab_size)
    try:
        # The attention implementation is left to transformers (SDPA): on one CPU thread it is as fast as the
        # explicit one (55 ms a step of 4 x 256 tokens at width 64, torch 2.13), and exports then run what we ran.
        network = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    except ValueError:
        raise ManifestError(
            f'model.model_type="{model.model_type}" is not a causal language model; use a Llama-style one such as '
            '"llama", "mistral" or "qwen2"'
        ) from None
    except Exception as error:  # noqa: BLE001  # the fields of a run file reach any code of transformers
        raise ManifestError(
            f'transformers cannot build "{model.model_type}" with these fields of model ({in_short(error)}); check '
            "model.extra"
        ) from None
    _Parts.of(network, model.model_type)
    return network


def _network_config(model: ModelConfig, vocab_size: int) -> PreTrainedConfig:
    """The transformers configuration. Special tokens are the tokenizer's business, so none are set here."""
    if not model.is_described:
        raise ManifestError(
            f'model.from="{model.checkpoint}" was not read before it was published; the run must be begun anew'
        )
    fixed: dict[str, Any] = {
        **model.model_dump(exclude={"checkpoint", "revision", "model_type", "extra"}),
        "num_key_value_heads": model.num_key_value_heads or model.num_attention_heads,
        "tie_word_embeddings": bool(model.tie_word_embeddings),
        "vocab_size": model.vocab_size or vocab_size,
        **NO_SPECIAL_TOKENS,
    }
    if vocab_size > fixed["vocab_size"]:
        raise ManifestError(
            f"the tokenizer has {vocab_size:,} tokens but the model {fixed['vocab_size']:,} rows for them; they do not "
            "belong together"
        )
    if taken := sorted(set(model.extra) & set(fixed)):
        raise ManifestError(f"model.extra has {', '.join(taken)}, which the run sets elsewhere; leave it out of extra")
    _check_names(model)
    defaults: dict[str, Any] = {}
    if model.checkpoint is None:
        # some model types fix a head width of 128 or 256 whatever the hidden size
        defaults = {"head_dim": (model.hidden_size or 0) // (model.num_attention_heads or 1)}
    try:
        return AutoConfig.for_model(model.model_type, **{**defaults, **model.extra, **fixed})
    except (ValueError, TypeError, StrictDataclassError) as error:
        raise ManifestError(f'transformers refuses the fields of model for "{model.model_type}": {error}') from None


def known_fields(model_type: str) -> set[str]:
    """What a configuration of this type may say. Raises ValueError when there is no such type."""
    return {*AutoConfig.for_model(model_type).to_dict(), *OLDER_NAMES}


def _check_names(model: ModelConfig) -> None:
    """Raises ManifestError when there is no such model type, or it does not have a field of model.extra.

    Of a manifest's fields none may name what transformers would load from elsewhere.
    """
    try:
        known = known_fields(model.model_type)
    except ValueError:
        raise ManifestError(
            f'model.model_type="{model.model_type}" is not known to the installed transformers; use a Llama-style one '
            'such as "llama", "mistral" or "qwen2", or update transformers'
        ) from None
    if unknown := sorted(set(model.extra) - known):
        raise ManifestError(
            f'model.extra has {", ".join(unknown)}, which "{model.model_type}" does not have; check the spelling'
        )


def _initialize(network: PreTrainedModel, generator: torch.Generator) -> None:
    """Embedding 1, matrices fan-in^-0.5, block outputs and head 0; norms and biases as transformers sets them.

    Every activation starts at unit size, every block as the identity and the loss at exactly log(vocab_size), so that
    learning rates of any size are safe from the first step. With transformers' own 0.02 a small model spends a short
    run on growing its embedding (d 96, 400 steps: perplexity 420-455 against 98-125 with this and learning rates by
    group). A tied matrix is both ends at once and gets the customary 0.02.
    """
    embedding = network.get_input_embeddings().weight
    head = network.get_output_embeddings().weight
    with torch.no_grad():
        for name, parameter in sorted(network.named_parameters()):
            if parameter is embedding:
                parameter.normal_(0.0, 0.02 if head is embedding else 1.0, generator=generator)
            elif parameter is head or name.removesuffix(".weight").endswith(RESIDUAL_OUTPUTS):
                parameter.zero_()
            elif parameter.ndim >= 2:
                parameter.normal_(0.0, 1.0 / math.sqrt(parameter.shape[-1]), generator=generator)


@dataclass(frozen=True)
class _Parts:
    """The names of an architecture's parameters, in the three parts that levels are made of."""

    embedding: frozenset[str]
    blocks: tuple[frozenset[str], ...]
    head: frozenset[str]
    """Final norm and output head: whatever is neither embedding nor block."""

    @classmethod
    def of(cls, network: PreTrainedModel, model_type: str) -> "_Parts":
        body, embedding, head = network.base_model, network.get_input_embeddings(), network.get_output_embeddings()
        layers = getattr(body, "layers", None)
        if not isinstance(layers, nn.ModuleList) or embedding is None or head is None:
            raise ManifestError(
                f'model.model_type="{model_type}" builds {type(network).__name__}, which does not keep an embedding, a '
                'list of blocks called "layers" and an output head; use a Llama-style one such as "llama", "mistral" '
                'or "qwen2"'
            )
        names = {id(parameter): name for name, parameter in network.named_parameters()}
        of_embedding = frozenset(names[id(parameter)] for parameter in embedding.parameters())
        of_blocks = tuple(frozenset(names[id(parameter)] for parameter in block.parameters()) for block in layers)
        return cls(of_embedding, of_blocks, frozenset(names.values()) - of_embedding.union(*of_blocks))


# --------------------------------------------------------------------------------------------------- a network by level


@dataclass(frozen=True, eq=False)
class ParameterGroup:
    """Parameters that the inner optimizer treats alike."""

    kind: Literal["embedding", "head", "rest"]
    """Whose learning-rate ratio applies. A tied matrix counts as `head`, which needs the smaller rate."""
    decays: bool
    """Whether weights decay. Matrices do; gains of norms and biases do not, as zero is no natural place for them."""
    parameters: NamedParameters


class PathModel:
    """A network whose parameters are the modules of one path, level by level."""

    def __init__(self, network: PreTrainedModel, levels: Sequence[LevelConfig]) -> None:
        """Raises ManifestError when the levels do not divide the network's parameters among them."""
        self.network = network
        self.levels = tuple(levels)
        self._levels = _parameters_by_level(network, self.levels)

    @property
    def num_levels(self) -> int:
        return len(self.levels)

    @property
    def device(self) -> torch.device:
        parameter: nn.Parameter = next(self.network.parameters())
        return parameter.device

    def to(self, device: str) -> None:
        """Move the network, in place: optimizers that hold its parameters keep working."""
        self.network.to(device)

    def size(self, level: int) -> int:
        """Number of parameters of a level."""
        return sum(parameter.numel() for _, parameter in self._levels[level])

    def vector(self, level: int) -> Tensor:
        """A fresh copy of a level's parameters: fp32 on the CPU, shape (size(level),)."""
        vector = torch.empty(self.size(level), dtype=torch.float32)
        take_large_pages(vector.data_ptr(), vector.nbytes)
        with torch.no_grad():
            for place, (_, parameter) in zip(self._places(level), self._levels[level], strict=True):
                vector[place].copy_(parameter.reshape(-1))
        return vector

    def named(self, level: int) -> dict[str, Tensor]:
        """A level's parameters by their names in the network, as transformers saves them; not copied."""
        return {name: parameter.detach() for name, parameter in self._levels[level]}

    def load(self, level: int, vector: Tensor) -> None:
        """Copy `vector`, fp32 of shape (size(level),), into a level's parameters, in place.

        Raises ManifestError when the vector is not as long as the level: it was made for another model.
        """
        if vector.shape != (self.size(level),):
            raise ManifestError(
                f"level {level} of this run's model has {self.size(level):,} parameters, but the module has shape "
                f"{list(vector.shape)}; it was made for another model or another cut into levels"
            )
        with torch.no_grad():
            for place, (_, parameter) in zip(self._places(level), self._levels[level], strict=True):
                parameter.copy_(vector[place].view_as(parameter))

    def add(self, level: int, way: Way) -> None:
        """Add to a level's parameters, in place. Every place of its vector is asked for once."""
        with torch.no_grad():
            for place, (_, parameter) in zip(self._places(level), self._levels[level], strict=True):
                flat = parameter.view(-1)
                for here in pieces_of(place):
                    flat[here.start - place.start : here.stop - place.start].add_(way(here).to(flat.device))

    def parameter_groups(self) -> tuple[ParameterGroup, ...]:
        """All parameters, by learning-rate ratio and weight decay; groups without parameters are left out."""
        embedding = self.network.get_input_embeddings().weight
        head = self.network.get_output_embeddings().weight
        groups: dict[tuple[Literal["embedding", "head", "rest"], bool], list[tuple[str, nn.Parameter]]] = {}
        for name, parameter in sorted(self.network.named_parameters()):
            kind: Literal["embedding", "head", "rest"] = "rest"
            if parameter is head:
                kind = "head"
            elif parameter is embedding:
                kind = "embedding"
            groups.setdefault((kind, parameter.ndim >= 2), []).append((name, parameter))
        return tuple(ParameterGroup(kind, decays, tuple(named)) for (kind, decays), named in groups.items())

    def decay_places(self, level: int, ratios: Mapping[str, float]) -> tuple[tuple[int, float], ...]:
        """Where weights decay in a level's vector; see the function of this name."""
        of = {
            name: ratios[group.kind] if group.decays else 0.0
            for group in self.parameter_groups()
            for name, _ in group.parameters
        }
        found: list[tuple[int, float]] = []
        for place, (name, _) in zip(self._places(level), self._levels[level], strict=True):
            if found and found[-1][1] == of[name]:
                found.pop()
            found.append((place.stop, of[name]))
        return tuple(found)

    def _places(self, level: int) -> list[slice]:
        """Where each parameter of a level lies in its vector."""
        places, start = [], 0
        for _, parameter in self._levels[level]:
            places.append(slice(start, start + parameter.numel()))
            start += parameter.numel()
        return places


def _parameters_by_level(network: PreTrainedModel, levels: tuple[LevelConfig, ...]) -> tuple[NamedParameters, ...]:
    """Each level's parameters, sorted by name; every parameter of the network is in exactly one."""
    parts = _Parts.of(network, network.config.model_type)
    by_name = dict(network.named_parameters())
    chosen: list[str] = []
    result = []
    for index, level in enumerate(levels):
        names: set[str] = set()
        names |= parts.embedding if level.embedding else set()
        names |= parts.head if level.head else set()
        for block in level.blocks:
            if not 0 <= block < len(parts.blocks):
                raise ManifestError(
                    f"levels[{index}] has block {block}, but the model has blocks 0 to {len(parts.blocks) - 1}"
                )
            names |= parts.blocks[block]
        if not names:
            raise ManifestError(f"levels[{index}] holds no parameters; give it blocks, the embedding or the head")
        chosen += names
        result.append(tuple((name, by_name[name]) for name in sorted(names)))
    if sorted(chosen) != sorted(by_name):
        odd = sorted(name for name in by_name if chosen.count(name) != 1)
        raise ManifestError(
            f"each parameter must be in exactly one level; in none or in several: {', '.join(odd[:3])}"
            f"{f' and {len(odd) - 3} more' if len(odd) > 3 else ''}"
        )
    return tuple(result)
