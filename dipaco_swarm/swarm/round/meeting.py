"""Where the members of one round have joined several leaders: to which of these a leader sends its own.

who leads the round as well (the first that fits)              our members go
---------------------------------------------------------------------------------------------------
one whom more have joined than us, when their patience is      there: it knows of us and keeps its own, and who is
  nearly over, and had when we asked before                      fewer would make another version
one whom we have joined, or whom that one has, and so on       there
a circle, in which each has joined the next                    to the first of it, in the order of leaders
one that comes before us in that order                         there
nobody                                                         nowhere

Each must say itself that it leads the round.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence

LONGEST_CHAIN = 8
"""So many who have each joined the next are asked."""


async def where_all_meet(
    us: str,
    follows: Mapping[str, str],
    more: str | None,
    order: Callable[[Sequence[str]], Sequence[str]],
    ask: Callable[[str], Awaitable[str | None]],
) -> str | None:
    """Another leader, to whom our members are sent; None: they stay. The table at the top of this file.

    `follows`: whom the missing have joined, and we, if we have; a leader has joined itself. `more`: the leader of the
    first row, if there is one. `order`: of leaders, of this round. `ask`: whom a peer has joined, as it says itself;
    None: nobody, or it does not answer.
    """
    if more is not None and await ask(more) == more:
        return more
    joined = follows.get(us, us)
    if joined == us:
        first = order(sorted({*follows.values(), us}))[0]
        return first if first != us and await ask(first) == first else None
    chain, last = [us], joined
    while last not in chain and len(chain) < LONGEST_CHAIN:
        chain.append(last)
        following = await ask(last)
        if following is None:
            return None
        last = following
    if last == us:
        first = order(sorted(chain))[0]
        return first if first != us else None
    return last if last == chain[-1] else None
