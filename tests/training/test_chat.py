"""A chat template is somebody else's program."""

from pathlib import Path

import pytest

from dipaco_swarm.errors import UsageError
from dipaco_swarm.training.chat import template_from, template_of


@pytest.mark.parametrize(
    "source", ["{{ 1/0 }}", "{{ 'a' * 2 ** 70 }}", "{{ messages[7].content }}", "{% for", "{{ [0] * 1.5 }}"]
)
def test_a_template_that_fails_is_a_line_however_it_fails(source: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the chat template cannot be used for these messages"):
        template_of(source)([{"role": "user", "content": "Hello"}])
    (tmp_path / "chat.jinja").write_text(source)
    with pytest.raises(UsageError, match="the chat template cannot be used"):
        template_from(tmp_path / "chat.jinja")


def test_it_says_what_the_messages_are() -> None:
    said = template_of("{% for each in messages %}{{ each.role }}: {{ each.content }}\n{% endfor %}")
    assert said([{"role": "user", "content": "Hello"}]).strip() == "user: Hello"
