"""Turns: which calls must wait for other calls to the same server, and when they may start.

A legacy server that cannot tell which call its requests belong to gets the calls of one client at a time (if
that client can be asked at all), until it has shown that it never asks. A server whose definition sets
`concurrency` gets exclusive calls one at a time.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable

import trio

from mcpd.gateway import call_tasks
from mcpd.gateway.client_context import ClientRequest
from mcpd.gateway.forwarded_call import INTERACTIVE_METHODS, ForwardedCall, tool_name
from mcpd.gateway.revision_translation import translation
from mcpd.model.errors import InvalidArguments, Overloaded, Problem
from mcpd.supervision.managed_server import ManagedServer
from mcpd.transports.outgoing_request import Exchange
from mcpd.wire import message as wire
from mcpd.wire.message import BadFrame

_TIMEOUT_CHECK_INTERVAL = 1.0
"""Seconds between two checks for calls that have waited too long."""


class TurnQueue:
    """The calls of one server that take turns: one owner at a time, with all of its calls together.

    Turns are granted in order of arrival. While others wait, new calls of the current owner queue up too,
    so that nobody starves. An entry is any object; it holds or awaits a turn at most once.
    """

    def __init__(self) -> None:
        self._owner: object = None
        self._holders: set[object] = set()
        self._waiting: deque[tuple[object, object, Callable[[], None]]] = deque()
        self._starting_calls = False
        self.has_timeout_watcher = False
        """Whether `_refuse_overdue` is running for this queue."""

    def acquire(self, entry: object, owner: object, go: Callable[[], None]) -> bool:
        """Return True if `entry` may start now; otherwise `go` is called in its turn. `go` must not raise."""
        if not self._waiting and (not self._holders or self._owner is owner):
            self._owner = owner
            self._holders.add(entry)
            return True
        self._waiting.append((entry, owner, go))
        return False

    def release(self, entry: object) -> None:
        """End the turn of `entry`, or stop waiting for one. Does nothing for an unknown entry."""
        if entry in self._holders:
            self._holders.remove(entry)
            self._start_next()
        elif self._waiting:
            self._waiting = deque(each for each in self._waiting if each[0] is not entry)

    def waiting(self) -> list[object]:
        """Return the entries that wait for a turn, in order."""
        return [entry for entry, _, _ in self._waiting]

    def _start_next(self) -> None:
        """Start the next owner's calls. A loop, not recursion: if nothing can be sent, each `go` releases its
        turn immediately, however many wait."""
        if self._starting_calls:
            return
        self._starting_calls = True
        try:
            while self._waiting and not self._holders:
                for entry, go in self._admit_next_owner():
                    if entry in self._holders:  # an earlier `go` may have released it
                        go()
        finally:
            self._starting_calls = False

    def _admit_next_owner(self) -> list[tuple[object, Callable[[], None]]]:
        """Give a turn to the first waiting entry and to those of the same owner directly behind it."""
        self._owner = self._waiting[0][1]
        admitted = []
        while self._waiting and self._waiting[0][1] is self._owner:
            entry, _, go = self._waiting.popleft()
            self._holders.add(entry)
            admitted.append((entry, go))
        return admitted

    def __len__(self) -> int:
        return len(self._holders) + len(self._waiting)


def turn_queue(server: ManagedServer) -> TurnQueue:
    """Return the queue of `server`, created on first use. `ManagedServer` only keeps the reference."""
    if server.turn_queue is None:
        server.turn_queue = TurnQueue()
    assert isinstance(server.turn_queue, TurnQueue)
    return server.turn_queue


def acquire_turn(call: ForwardedCall, request: ClientRequest, start: Callable[[ForwardedCall], None]) -> bool:
    """Return True if the call may be submitted now; otherwise `start` submits it when its turn comes.

    A call waits at most as long as a silent server may take to answer (`timeout` in the definition).
    """
    server = call.server
    owner: object = None
    if server.spec.concurrency != "free" and is_exclusive(server, request.method, tool_name(call.params)):
        owner = call
    elif (
        call.context.accepts_server_requests
        and request.method in INTERACTIVE_METHODS
        and not call.translation.from_modern
        and not call.upstream.link.correlates_server_requests
        and not server.elicitation_history.never_asks
        and not (request.method == "tools/call" and _is_read_only(server, tool_name(call.params)))
    ):
        owner = call.session
    if owner is None:
        return True
    call.holds_turn = True
    return wait_for_turn(server, call, owner, lambda: _start_turn(call, start), call.session.gateway.spawn)


def wait_for_turn(
    server: ManagedServer, call: Exchange, owner: object, go: Callable[[], None], spawn: call_tasks.Spawn
) -> bool:
    """Return True if the call may start now. Otherwise `go` is called when its turn comes, or the call fails
    once it has waited for its idle timeout. `spawn` must run tasks that outlive the call.

    Raises Overloaded if too many calls wait; the call is not queued then.
    """
    queue = turn_queue(server)
    if queue.acquire(call, owner, go):
        return True
    if len(queue.waiting()) > server.spec.max_queued:
        queue.release(call)
        message = f"{server.spec.name}: {server.spec.max_queued} calls are already waiting for their turn"
        raise Overloaded(f"{message}; nothing was sent, try again later", server=server.spec.name)
    call.deadline = trio.current_time() + call.idle_timeout
    if not queue.has_timeout_watcher:
        queue.has_timeout_watcher = True
        spawn(lambda: _refuse_overdue(server))
    return False


def release_turn(call: ForwardedCall) -> None:
    """End the call's turn."""
    call.holds_turn = False
    if call.context.accepts_server_requests and call.key:  # the call was sent
        call.server.elicitation_history.record_call()
    turn_queue(call.server).release(call)


def is_exclusive(server: ManagedServer, method: str, tool: str) -> bool:
    """Return whether the server's definition forbids other calls at the same time."""
    if method != "tools/call" or server.spec.concurrency == "free":
        return False
    return server.spec.concurrency == "serial" or not _is_read_only(server, tool)


def _start_turn(call: ForwardedCall, start: Callable[[ForwardedCall], None]) -> None:
    """Submit the call now. Its server may have been restarted since, or may be restarting."""
    upstream = call.server.upstream
    if upstream is None:
        call_tasks.spawn_for_call(call, lambda: _start_turn_when_ready(call, start))
        return
    if upstream is not call.upstream:
        call.upstream = upstream
        call.translation = translation(call.context.version, upstream.version)
    try:
        start(call)
    except BadFrame as error:
        call.failed(InvalidArguments(f"params: {error}", [Problem("$", str(error))]))
    except Exception as error:  # calls behind it must still get their turn
        call.failed(call_tasks.to_mcpd_error(error, call.server.spec.name))


async def _start_turn_when_ready(call: ForwardedCall, start: Callable[[ForwardedCall], None]) -> None:
    await call.session.gateway.core.wait_ready(call.server)
    await trio.lowlevel.checkpoint_if_cancelled()
    call.cancel_task = None
    _start_turn(call, start)


async def _refuse_overdue(server: ManagedServer) -> None:
    """Refuse calls that have waited too long. Runs while any call waits."""
    queue, name = turn_queue(server), server.spec.name
    try:
        while queue.waiting():
            await trio.sleep(_TIMEOUT_CHECK_INTERVAL)
            now = trio.current_time()
            for entry in queue.waiting():
                if isinstance(entry, Exchange) and entry.deadline <= now:
                    message = (
                        f"{name}: waited {entry.idle_timeout:g} s for other calls, which must not overlap "
                    )
                    message += "with this one; nothing was sent, try again later"
                    if server.spec.concurrency == "free":
                        message += f" (`share: client` in the definition of {name} gives each client its own)"
                    entry.failed(Overloaded(message, server=name))
    finally:
        queue.has_timeout_watcher = False


def _is_read_only(server: ManagedServer, tool: str) -> bool:
    catalog = server.catalog
    item = catalog.tool(tool) if catalog is not None else None
    return item is not None and declares_read_only(item.raw)


@functools.lru_cache(maxsize=1024)
def declares_read_only(tool: bytes) -> bool:
    """Return the server's `annotations.readOnlyHint` for the tool."""
    try:
        annotations = wire.value(wire.members(tool).get("annotations", b"null"))
    except BadFrame:
        return False
    return isinstance(annotations, dict) and annotations.get("readOnlyHint") is True
