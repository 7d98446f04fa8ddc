"""Tokens as text, piece by piece, until one of some words comes that end it."""

from collections.abc import Sequence

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

TAIL = 64
"""Tokens before an answer that tell how it begins; they are decoded again with each token until text comes."""


class Words:
    """The text of one answer. What may be the beginning of a stop word is held back until that is known."""

    def __init__(self, tokenizer: Tokenizer, before: Sequence[int], stop: Sequence[str]) -> None:
        """`before`: tokens that the answer follows; some tokens are written in another way at a text's beginning."""
        self._tokenizer = tokenizer
        self._stream = DecodeStream(ids=list(before[-TAIL:]), skip_special_tokens=True)
        self._stop = stop
        self._held = ""
        self.stopped = False
        """A stop word has come; neither it nor what follows is given out."""

    def take(self, token: int) -> str:
        """What can be given out now that this token is there."""
        return self._give(self._held + (self._stream.step(self._tokenizer, token) or ""))

    def rest(self) -> str:
        """What was held back in vain, at the end."""
        held, self._held = self._held, ""
        return "" if self.stopped else held

    def _give(self, text: str) -> str:
        found = [place for word in self._stop if (place := text.find(word)) >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)]
        kept = max((_overlap(text, word) for word in self._stop), default=0)
        self._held = text[len(text) - kept :]
        return text[: len(text) - kept]


def _overlap(text: str, word: str) -> int:
    """Characters at the end of a text that a word may begin with."""
    return next((n for n in range(min(len(word) - 1, len(text)), 0, -1) if text.endswith(word[:n])), 0)
