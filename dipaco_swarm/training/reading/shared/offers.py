"""How a peer says in the directory what it has routed: under the topic of a stretch of the run's order, in few bytes.

    routes/STAGE/CORPUS/STRETCH     "120-131,150+3,160@5+2": portions 120 to 131 whole; of 150 the first three slices,
                                    of 160 two from slice 5 on

As peers go on from where they began, each is under one topic or a few, however long the corpus and however many the
peers; and who looks for more reads one topic after the other.
"""

import re
from collections.abc import Iterable, Mapping

from dipaco_swarm.training.reading.shared.shelf import Span

STRETCHES = 16
MAX_BYTES = 300
"""Of what is said."""
MAX_SPANS = 4096
"""That are read of one peer under one topic."""
_WORD = re.compile(r"(\d{1,7})(?:-(\d{1,7})|(?:@(\d{1,7}))?\+(\d{1,7}))?")


def stretch_of(portion: int, portions: int) -> int:
    """The stretch of the order in which a portion is."""
    return portion * num_stretches(portions) // portions


def portions_of(stretch: int, portions: int) -> range:
    """The portions of a stretch."""
    stretches = num_stretches(portions)
    return range(-(-stretch * portions // stretches), -(-(stretch + 1) * portions // stretches))


def num_stretches(portions: int) -> int:
    return min(STRETCHES, portions)


def topic_of(stage: int, corpus: str, stretch: int) -> str:
    """`corpus`: the same for all who have the same documents, router and rules."""
    return f"routes/{stage}/{corpus}/{stretch}"


def said_of(spans: Mapping[int, Span]) -> bytes:
    """As many portions as fit, the newest first (they come last in the mapping)."""
    whole = {portion for portion, span in spans.items() if span.is_whole and span.first == 0}
    partly = [portion for portion in reversed(list(spans)) if portion not in whole]
    words = [_part(portion, spans[portion]) for portion in partly] + list(_ranges(sorted(whole)))
    said = ""
    for word in words:
        longer = f"{said},{word}" if said else word
        if len(longer) > MAX_BYTES:
            break
        said = longer
    return said.encode()


def spans_in(said: bytes, stretch: int, portions: int) -> dict[int, Span]:
    """What `said_of` wrote about portions of a stretch; a span of unknown end ends at -1. Raises ValueError.

    Portions that are named again and again are read so often, until they are MAX_SPANS.
    """
    found: dict[int, Span] = {}
    of_stretch, left = portions_of(stretch, portions), MAX_SPANS
    for word in said.decode("ascii").split(",") if said else ():
        match = _WORD.fullmatch(word)
        if match is None:
            raise ValueError("is not a list of portions")
        portion, last, first, count = (None if part is None else int(part) for part in match.groups())
        assert portion is not None
        through = portion if last is None else last
        if not portion <= through < portions:
            raise ValueError(f"names portions that are none of {portions}")
        here = range(max(portion, of_stretch.start), min(through + 1, of_stretch.stop))[:left]
        left -= len(here)
        begin = first or 0
        for each in here:
            found[each] = Span(0, -1, True) if count is None else Span(begin, begin + count, False)
    return found


def _part(portion: int, span: Span) -> str:
    """A portion that is whole but for its beginning is said as one that is not."""
    return f"{portion}{f'@{span.first}' if span.first else ''}+{span.end - span.first}"


def _ranges(portions: Iterable[int]) -> Iterable[str]:
    ranges: list[list[int]] = []
    for portion in portions:
        if ranges and ranges[-1][1] == portion - 1:
            ranges[-1][1] = portion
        else:
            ranges.append([portion, portion])
    return (str(first) if first == last else f"{first}-{last}" for first, last in ranges)
