"""The call log of all replicas: a stream in Redis, besides the file that each of them writes.

A replica reads its own calls from its file, and those of the others from the stream. Their times are shifted
by the difference of the clocks.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import msgspec

from mcpd.model.events import CallRecord
from mcpd.model.status import parse_timestamp, rfc3339

if TYPE_CHECKING:
    from mcpd.state.shared import Link, SharedState, Work

_KEY = "mcpd:calls"
_MAX_BATCH = 32 * 1024
_MAX_UNSENT = 128
"""Batches. Those that do not fit, because Redis is down, are in the file only."""
_AT_ONCE = 16
_READ_SECONDS = 2.0
_MAX_SHIFT = 2.0
"""Seconds by which clocks may differ without a correction: it would say more than is known."""


class _Batch(msgspec.Struct):
    records: Sequence[CallRecord]
    clock: float = 0.0
    """See `Link`."""
    id: str = msgspec.field(default_factory=lambda: uuid4().hex)
    """It may be sent twice, if the answer of Redis is lost."""


_decode = msgspec.json.Decoder(_Batch).decode


class SharedCalls:
    """See `SharedPart`."""

    def __init__(self, state: SharedState, size: Callable[[], int]) -> None:
        """`size` returns the bytes that Redis may use for the stream."""
        self._state, self._size = state, size
        self._unsent: deque[_Batch] = deque(maxlen=_MAX_UNSENT)

    def add(self, records: Sequence[CallRecord]) -> None:
        """Say in these that this replica had the call, and send them."""
        for record in records:
            record.replica = self._state.link.replica
        count = max(1, len(records) * _MAX_BATCH // len(msgspec.json.encode(records)))
        self._unsent += (_Batch(records[start : start + count]) for start in range(0, len(records), count))

    def prepare(self) -> Work:
        return partial(self._exchange, list(islice(self._unsent, _AT_ONCE)), self._size())

    def _exchange(self, sent: Sequence[_Batch], size: int, link: Link) -> Callable[[], None]:
        """Runs in the thread."""
        for batch in sent:
            batch.clock = link.clock
            link.redis.xadd(_KEY, {"batch": link.seal("calls", msgspec.json.encode(batch))})
        if sent and (used := int(link.redis.memory_usage(_KEY) or 0)) > size:
            link.redis.xtrim(_KEY, maxlen=int(link.redis.xlen(_KEY) * size / used), approximate=True)
        return partial(self._apply, sent)

    def _apply(self, sent: Sequence[_Batch]) -> None:
        while self._unsent and any(self._unsent[0] is each for each in sent):
            self._unsent.popleft()

    async def with_others(
        self, own: Sequence[CallRecord], matches: Callable[[CallRecord], bool], limit: int
    ) -> tuple[CallRecord, ...]:
        """Return the newest of these and of what other replicas have recorded, oldest first."""
        nothing: list[CallRecord] = []
        found = await self._state.ask(partial(self._read, frozenset(own), matches, limit), nothing)
        return tuple(sorted([*own, *found], key=lambda record: record.at)[-limit:])

    def _read(
        self, own: frozenset[CallRecord], matches: Callable[[CallRecord], bool], limit: int, link: Link
    ) -> list[CallRecord]:
        """Runs in the thread."""
        found: list[CallRecord] = []
        seen, last, until = set[str](), "+", time.monotonic() + _READ_SECONDS
        while len(found) < limit and time.monotonic() < until:
            page: Any = link.redis.xrevrange(_KEY, max=last, count=_AT_ONCE)
            for id, fields in page:
                last = f"({id.decode()}"
                content = link.unseal("calls", fields[b"batch"])
                batch = None if content is None else _decode(content)
                if batch is not None and batch.id not in seen:
                    seen.add(batch.id)
                    found += filter(matches, _shifted(batch, link.clock, own))
            if len(page) < _AT_ONCE:
                break
        return found[::-1]


def _shifted(batch: _Batch, clock: float, own: frozenset[CallRecord]) -> Iterator[CallRecord]:
    """Return the records that are not the own ones, newest first, with times by the clock of this machine."""
    shift = batch.clock - clock
    for record in reversed(batch.records):
        if record not in own:
            if abs(shift) > _MAX_SHIFT:
                record.at = rfc3339(parse_timestamp(record.at) + shift)
            yield record
