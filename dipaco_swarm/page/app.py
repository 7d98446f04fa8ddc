"""The ASGI application. Everything is read, nothing is changed, and all of it comes from here.

    /                       the page; it does the rest by itself
    /api/events             server-sent events: the whole picture, then what changes
    /api/status             what `dipaco-swarm status --json` says
    /api/history            curves: ?seconds=86400 back from now, or the next of `RANGES`; all of it without
    /api/paths/3            one path: its curve, and who trains it
    /api/peers              everybody who was ever seen: ?start=0&count=50&find=text&sort=counted
    /api/peers/12D3...      one peer
    /metrics                for Prometheus

Paths in the page are relative, so it can be served below any prefix.
"""

import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from dipaco_swarm.dashboard.views import MemberStatus
from dipaco_swarm.page.board import to_bytes
from dipaco_swarm.page.history import MEANS, TIERS, Sample, thinned, tier_of
from dipaco_swarm.page.kept import Kept
from dipaco_swarm.page.metrics import RunCollector
from dipaco_swarm.page.picture import contributor_row, rounded
from dipaco_swarm.page.sites import site_of
from dipaco_swarm.page.statics import EVENTS, Guarded, files_of
from dipaco_swarm.page.watch import Seen, Watch

POINTS = 400
"""Of a curve: as many as a screen shows."""
CURVES_EACH = 16
"""So many paths have a curve each; of more there is the middle, and what the best and the worst tenth are beyond."""
MOST_ROWS = 200
MOST_VIEWERS = 2000
MOST_OF_ONE = 32
"""Viewers of one client (`site_of`)."""
HEARTBEAT_SECONDS = 20.0
"""After so long without news something is sent all the same, so that nobody between us takes the line for dead."""
RANGES = (3600, 86400, 604800)
"""Seconds back from now that curves begin, besides the beginning: those that the page asks for. Whoever asks for others
gets the next longer one, so that there are few to make."""
SORTS = ("counted", "offered", "last", "name")


class Application:
    """The routes over one watch."""

    def __init__(self, watch: Watch, hosts: Sequence[str] = ("*",)) -> None:
        """`hosts`: by which names it may be called."""
        self._watch = watch
        self._hosts = list(hosts)
        self._kept = Kept()
        self._viewers = Counter[str]()
        """By where they are."""
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(RunCollector(watch))

    def asgi(self) -> Starlette:
        routes = [
            Route("/api/events", self.events),
            Route("/api/status", self.status),
            Route("/api/history", self.history),
            Route("/api/paths/{index}", self.path),
            Route("/api/peers", self.peers),
            Route("/api/peers/{peer}", self.peer),
            Route("/metrics", self.metrics),
            *(Route(place, file) for place, file in files_of("dipaco_swarm.page")),
        ]
        return Starlette(
            routes=routes,
            middleware=[
                Middleware(Guarded),
                Middleware(TrustedHostMiddleware, allowed_hosts=self._hosts, www_redirect=False),
                Middleware(GZipMiddleware, minimum_size=1000),
            ],
        )

    async def events(self, request: Request) -> Response:
        if self._watch.board.viewers >= MOST_VIEWERS:
            raise HTTPException(503, f"{MOST_VIEWERS} look at this page already; try again in some minutes")
        site = None if request.client is None else site_of(request.client.host)
        if site is not None and self._viewers[site] >= MOST_OF_ONE:
            raise HTTPException(429, f"{MOST_OF_ONE} look at this page from where you are; close some of them")
        return StreamingResponse(self._stream(site), media_type="text/event-stream", headers=EVENTS)

    async def _stream(self, site: str | None) -> AsyncIterator[bytes]:
        board, number = self._watch.board, 0
        board.viewers += 1
        self._viewers.update([site] if site is not None else [])
        try:
            yield b"retry: 3000\n\n"
            while not board.closed:
                number, data = await board.after(number, HEARTBEAT_SECONDS)
                yield data or b": still here\n\n"
        finally:
            board.viewers -= 1
            self._viewers -= Counter([site] if site is not None else [])

    async def status(self, request: Request) -> Response:
        seen = self._seen()
        return await self._answer("status", lambda: seen.status.to_json().encode())

    async def history(self, request: Request) -> Response:
        seconds = _range(request)
        return await self._answer(f"history {seconds}", lambda: to_bytes(self._curves(seconds)))

    async def path(self, request: Request) -> Response:
        name, seen = request.path_params["index"], self._seen()
        index = next((path.index for path in seen.status.paths if str(path.index) == name), None)
        if index is None:
            raise HTTPException(404, f"there is no path {name[:20]} that is trained in this stage")
        seconds = _range(request)
        return await self._answer(f"path {index} {seconds}", lambda: to_bytes(self._path(seen, index, seconds)))

    async def peers(self, request: Request) -> Response:
        start = _number(request, "start", 0, 0, 10**6)
        most = _number(request, "count", 50, 1, MOST_ROWS)
        sort = request.query_params.get("sort", SORTS[0])
        if sort not in SORTS:
            raise HTTPException(400, f"sort={sort[:20]!r} is none of {', '.join(SORTS)}")
        find = request.query_params.get("find", "")[:80].casefold()
        here = request.query_params.get("here") == "1"
        key = f"peers {start} {most} {sort} {here} {find}"
        return await self._answer(key, lambda: to_bytes(self._peers(start, most, sort, find, here=here)))

    async def peer(self, request: Request) -> Response:
        name = request.path_params["peer"]
        found = self._peer(name)
        if found is None:
            raise HTTPException(404, "nobody of that name was seen")
        return _json(to_bytes(found))

    async def metrics(self, request: Request) -> Response:
        try:
            encode, kind = choose_encoder(request.headers.get("accept", ""))
        except (TypeError, ValueError):  # it does not understand all that may stand there
            encode, kind = choose_encoder("")
        data = await self._kept.get(f"metrics {kind}", lambda: encode(self._registry))
        return Response(data, headers={"content-type": kind})

    # --------------------------------------------------------------------------------------------------- what is told

    def _seen(self) -> Seen:
        if self._watch.seen is None:
            raise HTTPException(503, "nothing of the run was seen yet; try again in some seconds")
        return self._watch.seen

    async def _answer(self, key: str, make: Callable[[], bytes]) -> Response:
        return _json(await self._kept.get(key, make))

    def _samples(self, seconds: int) -> list[Sample]:
        history, now = self._watch.history, time.time()
        since = history.since()
        start = now - seconds if seconds else since or now
        start = max(start, since or start)
        samples = history.samples(start - TIERS[-1].seconds, now + 10, tier_of(now - start, 2 * POINTS))
        return thinned([sample for sample in samples if sample.at >= start], POINTS)

    def _curves(self, seconds: int) -> dict[str, Any]:
        samples = self._samples(seconds)
        num_paths = len(samples[-1].paths) if samples else 0
        curves: dict[str, Any] = {name: [rounded(getattr(s, name), 4) for s in samples] for name in MEANS}
        curves |= {
            "at": [round(s.at) for s in samples],
            "stage": [s.stage for s in samples],
            "tokens": [s.tokens for s in samples],
            "version": [rounded(s.version, 4) for s in samples],
        }
        if num_paths <= CURVES_EACH:
            curves["paths"] = [[rounded(_at(s, index), 4) for s in samples] for index in range(num_paths)]
        else:
            curves["band"] = [_band(s) for s in samples]
        return curves

    def _path(self, seen: Seen, index: int, seconds: int) -> dict[str, Any]:
        samples = [s for s in self._samples(seconds) if s.stage == seen.status.stage]
        members = [member for member in seen.status.members if member.path == index]
        return {
            "at": [round(s.at) for s in samples],
            "loss": [rounded(_at(s, index), 4) for s in samples],
            "members": [self._member(member) for member in members[:MOST_ROWS]],
            "more": max(0, len(members) - MOST_ROWS),
        }

    def _member(self, member: MemberStatus) -> dict[str, Any]:
        known = self._watch.ledger.get(member.name)
        values = asdict(member) | {"peer": member.name, "name": "" if known is None else known.nickname}
        values["tokens_per_second"] = rounded(member.tokens_per_second)
        values["loss"] = rounded(member.loss, 4)
        return values

    def _peers(self, start: int, most: int, sort: str, find: str, *, here: bool) -> dict[str, Any]:
        seen = self._watch.seen
        there = {} if seen is None else {member.name: member for member in seen.status.members}
        with self._watch.lock:
            ranking = list(enumerate(self._watch.ledger.ranking(), 1))
        found = [
            (rank, each)
            for rank, each in ranking
            if (not here or each.peer in there)
            and (not find or find in each.nickname.casefold() or find in each.peer.casefold())
        ]
        if sort == "name":
            found.sort(key=lambda entry: (entry[1].nickname == "", entry[1].nickname.casefold(), entry[1].peer))
        elif sort != SORTS[0]:
            found.sort(key=lambda entry: -float(getattr(entry[1], sort)))
        rows = []
        for rank, each in found[start : start + most]:
            member = there.get(each.peer)
            speed = None if member is None else rounded(member.tokens_per_second)
            rows.append(contributor_row(each, rank, member is not None) | {"speed": speed})
        return {"total": len(found), "ever": len(ranking), "start": start, "rows": rows}

    def _peer(self, name: str) -> dict[str, Any] | None:
        seen = self._watch.seen
        with self._watch.lock:
            known, ranking = self._watch.ledger.get(name), self._watch.ledger.ranking()
        if known is None:
            return None
        member = None if seen is None else seen.member(name)
        rank = next(rank for rank, each in enumerate(ranking, 1) if each.peer == name)
        return {
            **contributor_row(known, rank, member is not None),
            "of": len(ranking),
            "share": rounded(known.counted / max(1.0, sum(each.counted for each in ranking)), 3),
            "member": None if member is None else self._member(member),
        }


def _json(data: bytes) -> Response:
    return Response(data, media_type="application/json", headers={"cache-control": "no-store"})


def _range(request: Request) -> int:
    """0: from the beginning."""
    seconds = _number(request, "seconds", 0, 0, 10**9)
    return next((each for each in RANGES if 0 < seconds <= each), 0)


def _number(request: Request, name: str, default: int, least: int, most: int) -> int:
    text = request.query_params.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) < 12 and least <= int(text) <= most):
        raise HTTPException(400, f"{name}={text[:20]!r} is not a number from {least} to {most}")
    return int(text)


def _at(sample: Sample, index: int) -> float | None:
    return sample.paths[index] if index < len(sample.paths) else None


def _band(sample: Sample) -> list[float | None]:
    """Loss of the path at the best tenth, in the middle, and at the worst tenth."""
    losses = sorted(loss for loss in sample.paths if loss is not None and not math.isnan(loss))
    if not losses:
        return [None, None, None]
    return [rounded(losses[min(len(losses) - 1, int(len(losses) * share))], 4) for share in (0.1, 0.5, 0.9)]
