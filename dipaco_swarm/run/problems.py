"""What is wrong with a run file or a manifest, in words for a person."""

from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError


def explain(error: ValidationError) -> str:
    """The first problems of a validation, one `field: reason (got value)` each."""
    problems = [f"{field}: {what}" for field, what in reasons_of(error).items()]
    more = len(problems) - 3
    return "; ".join(problems[:3]) + (f"; and {more} more" if more > 0 else "")


def reasons_of(error: ValidationError) -> dict[str, str]:
    """What is wrong with each field, `reason (got value)`, in the order in which they were checked."""
    reasons: dict[str, list[str]] = {}
    got: dict[str, str] = {}
    for problem in error.errors():
        field = field_of(problem["loc"])
        reason = problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "extra_forbidden":
            reason = "this key is not known; check its spelling and section"
        elif problem["type"] == "missing":
            reason = "this key is required"
        elif problem["type"] == "model_type":
            reason = f"this is a section: write [{field}], and its keys below it"
        elif problem["type"] != "value_error":
            reason = reason[:1].lower() + reason[1:]
            got[field] = f" (got {shortened(problem['input'])})"
        reasons.setdefault(field, []).append(reason)  # a union says one reason for each of its types
    return {field: f"{', or '.join(why)}{got.get(field, '')}" for field, why in reasons.items()}


def field_of(location: Sequence[int | str]) -> str:
    """`stages[1].modules[0]`, as one would point at it; pydantic adds the types of a union, which nobody wrote."""
    name = ""
    for part in location:
        if isinstance(part, int):
            name += f"[{part}]"
        elif part != "int" and not part.startswith("literal["):
            name += f".{part}" if name else part
    return name or "as a whole"


def shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
