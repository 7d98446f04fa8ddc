"""What a volunteer reads when a round does not happen: every reason that the code can give."""

import ast
from pathlib import Path

import pytest

from dipaco_swarm.swarm import networked
from dipaco_swarm.swarm.round import deciding, decision, following, gathering, leader, rounds, verdicts

REASONS_OF = {"NotAgreed": 0, "Refuse": None, "Abort": None}
"""Where the reason is: the first argument, or the keyword."""
INSIDE_WORDS = ("generation", "roster", "reducer", "seat", "piece", "digest", "leader", "member", "stream", "Error")
MOST = 120 - len("L12M345: ; nothing lost")


def reasons() -> list[str]:
    """The constant parts of all reasons; what is filled in is short."""
    found = []
    for module in (deciding, decision, following, gathering, leader, networked, rounds, verdicts):
        assert module.__file__ is not None
        for call in ast.walk(ast.parse(Path(module.__file__).read_text())):
            if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in REASONS_OF):
                continue
            given = [word.value for word in call.keywords if word.arg == "reason"] or call.args[:1]
            for value in given:
                parts = value.values if isinstance(value, ast.JoinedStr) else [value]
                found.append("".join(str(p.value) if isinstance(p, ast.Constant) else "…" for p in parts))
    return found


def test_there_are_reasons() -> None:
    assert len(reasons()) >= 15


@pytest.mark.parametrize("reason", sorted(set(reasons())))
def test_a_reason_is_a_calm_line_without_words_of_the_protocol(reason: str) -> None:
    assert len(reason) <= MOST
    assert "\n" not in reason
    assert not any(word in reason for word in INSIDE_WORDS), reason
    assert "!" not in reason
