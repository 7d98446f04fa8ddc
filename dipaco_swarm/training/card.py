"""The model card of an export: what the run file says of the model, and what was measured, as Markdown."""

from collections.abc import Sequence
from dataclasses import dataclass

from huggingface_hub import EvalResult, ModelCardData

from dipaco_swarm.run.config import AboutConfig

PATH_CODE = """\
from transformers import AutoModelForCausalLM, AutoTokenizer

folder = "path/to/this/folder"
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder)
inputs = tokenizer("Once upon a time", return_tensors="pt")
print(tokenizer.decode(model.generate(**inputs, max_new_tokens=50)[0]))
"""
SOFT_CAP_CODE = PATH_CODE.replace("(folder)\ninputs", '(folder, attn_implementation="eager")\ninputs')
"""For attention with a soft cap, which the default of transformers 4 leaves out."""
ROUTED_CODE = """\
from dipaco_model import RoutedModel  # a file of this folder; it needs torch and transformers alone

model = RoutedModel.from_pretrained("path/to/this/folder")
print(model.generate("Once upon a time", max_new_tokens=50))
"""


@dataclass(frozen=True)
class Table:
    """Figures of a model."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    @property
    def markdown(self) -> str:
        lines = [self.header, ["---"] * len(self.header), *self.rows]
        return "".join(f"| {' | '.join(line)} |\n" for line in lines)


@dataclass(frozen=True)
class Card:
    """A card that is written next to a model, under the name of its folder."""

    about: AboutConfig
    base_model: str | None
    """The model that the run began with, as the hub calls it."""
    what: str
    """Markdown: which run, stage, path and versions these are."""
    tables: Sequence[Table] = ()
    perplexity: float | None = None
    """On held-out documents."""
    data: str = ""
    """What that was measured on."""
    code: str = PATH_CODE
    """How to load it."""

    def markdown(self, title: str) -> str:
        parts = [f"# {title}", self.about.description or "", self.what]
        if self.perplexity is not None:
            parts.append(f"Perplexity {self.perplexity:.2f} on {self.data}.")
        parts += [table.markdown.rstrip() for table in self.tables]
        parts.append(f"```python\n{self.code}```")
        front = self._front(title).to_yaml()
        return f"---\n{front}\n---\n\n" + "\n\n".join(part for part in parts if part) + "\n"

    def _front(self, title: str) -> ModelCardData:
        """What the hub reads."""
        results = None
        if self.perplexity is not None:
            results = [
                EvalResult(
                    task_type="text-generation",
                    dataset_type="held-out",
                    dataset_name=self.data,
                    metric_type="perplexity",
                    metric_value=round(self.perplexity, 4),
                )
            ]
        return ModelCardData(
            library_name="transformers",
            pipeline_tag="text-generation",
            tags=["dipaco-swarm"],
            license=self.about.license,
            language=list(self.about.languages) or None,
            datasets=list(self.about.datasets) or None,
            base_model=self.base_model,
            model_name=title if results else None,
            eval_results=results,
        )
