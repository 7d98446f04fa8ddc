"""Reads the operator's RUN.toml."""

import json
import tomllib
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dipaco_swarm.errors import RunFileError
from dipaco_swarm.run.config import RunConfig
from dipaco_swarm.run.problems import explain


def read_run_file(path: Path) -> RunConfig:
    """Read and check the operator's RUN.toml. Raises RunFileError that names the field, the value and the reason."""
    return parse_run_file(text_of_run_file(path), str(path))


def text_of_run_file(path: Path) -> str:
    """Raises RunFileError when it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise RunFileError(
            f"there is no run file {path}; `dipaco-bootstrap init {path}` writes one to start from"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise RunFileError(f"the run file {path} cannot be read: {error}") from None


def parse_run_file(text: str, name: str = "run file") -> RunConfig:
    """Check the text of a run file. Raises RunFileError."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise RunFileError(f"{name} is not valid TOML: {error}") from None
    try:
        # through JSON, so that strict types accept TOML's arrays as tuples and nothing else is bent
        return RunConfig.model_validate_json(json.dumps(document, default=not_json))
    except ValidationError as error:
        raise RunFileError(f"{name}: {explain(error)}") from None


def not_json(value: Any) -> list[str]:
    """TOML has dates and JSON has not: as a list, which no field takes for a text."""
    return [str(value)]
