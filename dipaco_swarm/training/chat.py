"""A conversation as the text that a model was taught to go on with: its chat template."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from transformers.utils.chat_template_utils import render_jinja_template

from dipaco_swarm.errors import UsageError, in_short

Messages = list[dict[str, str]]
"""Each with `role` and `content`."""
LONGEST = 1 << 18
"""Bytes of a template."""


def template_from(file: Path) -> Callable[[Messages], str]:
    """A Jinja template, as tokenizers of the hub have one (`chat_template.jinja`). Raises UsageError."""
    try:
        source = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--chat-template {file} cannot be read ({error})") from None
    if len(source) > LONGEST:
        raise UsageError(f"--chat-template {file} has {len(source):,} characters; a template has some thousands")
    template_of(source)([{"role": "user", "content": "Hello"}])  # what is wrong with it is wrong now
    return template_of(source)


def template_of(source: str, special: Sequence[tuple[str, Any]] = ()) -> Callable[[Messages], str]:
    """`special`: names that the template may use, as `bos_token`."""

    def prompt(messages: Messages) -> str:
        try:
            rendered, _ = render_jinja_template(
                [messages], chat_template=source, add_generation_prompt=True, **dict(special)
            )
        except Exception as error:  # noqa: BLE001  # a template is a program, and may divide by zero as any other
            raise UsageError(f"the chat template cannot be used for these messages: {in_short(error)}") from None
        text: str = rendered[0]
        return text

    return prompt
