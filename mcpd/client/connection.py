"""The connection to the daemon, which is opened again after the daemon has restarted.

A request is repeated on the new connection only if it changes nothing, or if it certainly did not run: the
daemon cannot have read all of it, or has refused it because it was stopping.
"""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import anyio

from mcpd.client.background import start_background_task
from mcpd.client.errors import NOT_SENT, CallTimedOut, ClientError, ConnectionClosed, InvalidCall, NotRunning
from mcpd.client.handlers import UPDATED, Handlers, log, notify
from mcpd.client.legacy import SUBSCRIBE, UNSUBSCRIBE, open_session
from mcpd.client.link import CLOSED_BY_US, Link, Progress
from mcpd.files.paths import UnusablePath, socket_path

_RESTART_TIME = 20.0
"""Seconds to wait for a daemon that has closed the connection to listen again."""
_SUCCESSOR_TIME = 1.0
"""Seconds after the end of a connection until a daemon is started, unless somebody else has started one."""
_POLL, _MAX_POLL = 0.05, 0.5
"""Seconds between attempts to connect."""
_MAX_REPEATS = 5
"""How often one request is repeated: the request itself may be what ends the daemon."""
_GRACE = 5.0
"""Seconds that the daemon has to report that a call took too long."""
_PATIENCE = 5.0
"""Seconds that the daemon then has to respond to another request; otherwise it hangs."""
_READING = frozenset(
    (
        "mcpd/approvals",
        "mcpd/auth/explain",
        "mcpd/auth/status",
        "mcpd/calls",
        "mcpd/clients",
        "mcpd/config",
        "mcpd/config/check",
        "mcpd/history",
        "mcpd/logs",
        "mcpd/metrics",
        "mcpd/policy",
        "mcpd/prompts",
        "mcpd/read",
        "mcpd/resources",
        "mcpd/server",
        "mcpd/stats",
        "mcpd/status",
        "mcpd/tools",
        "mcpd/version",
        "rpc.discover",
    )
)
"""Methods that change nothing, so that they can run twice."""
_UNFINISHED = object()


class Connection:
    """Created by `open_connection`. Any number of tasks may use it."""

    def __init__(
        self,
        link: Link,
        open_link: Callable[[], Awaitable[Link]] | None,
        start_daemon: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`open_link` opens another connection to the same daemon, and raises ClientError. None: never.

        `start_daemon` starts the daemon if it is not running, or raises NotRunning. None: it is not started.
        """
        self._link = link
        self._open_link = open_link
        self._start_daemon = start_daemon
        self._opening = anyio.Lock()
        self._failures = 0
        """How often the daemon was not back in time: all requests that waited for it then fail."""
        self._failure = ""
        """Why it was not back the last time."""
        self._subscribed: set[str] = set()
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<Connection to mcpd by {self._link!r}>"

    async def request(
        self,
        method: str,
        params: Mapping[str, object] | None = None,
        progress: Progress | None = None,
        timeout: float | None = None,  # of `mcpd/call`
    ) -> Any:  # noqa: ANN401 # JSON
        """Send a control API request and return its result. Raises ClientError.

        If the daemon restarts, waits for it and repeats the request. A request that may have run is repeated
        only if its method changes nothing. `timeout` is the parameter of that name of `mcpd/call`. It covers
        the restart too, and a daemon that hangs is not waited for. Cancelling this call cancels the request.
        """
        arguments = dict(params or {})
        if timeout is None:
            return await self._request(method, arguments, progress, None)
        if not timeout > 0:
            raise InvalidCall(f"`timeout` must be above 0, not {timeout:g}", "invalid_arguments", NOT_SENT)
        result: Any = _UNFINISHED
        with anyio.CancelScope() as call:
            watch = anyio.CancelScope()
            start_background_task(partial(self._watch, timeout, call, watch))
            try:
                result = await self._request(method, arguments, progress, timeout)
            finally:
                watch.cancel()
        if result is _UNFINISHED:
            text = f"the daemon hangs: it responds neither to {method} nor to other requests"
            raise CallTimedOut(text, "timeout", {"after": timeout, "may_have_run": True})
        return result

    async def _watch(self, timeout: float, call: anyio.CancelScope, watch: anyio.CancelScope) -> None:
        """Cancel a call if the daemon, which enforces its timeout, hangs. `watch` ends this.

        A call may take longer, because progress restarts the timeout, and not all progress is passed on.
        """
        with watch:
            while True:
                await anyio.sleep(timeout + _GRACE)
                link = self._link
                if link.close_reason:
                    continue  # the call has just failed, or waits no longer than for its timeout
                with anyio.move_on_after(_PATIENCE) as patience, suppress(ClientError):
                    await link.request("mcpd/version")
                if patience.cancelled_caught:
                    call.cancel()

    async def _request(
        self, method: str, params: dict[str, object], progress: Progress | None, timeout: float | None
    ) -> Any:  # noqa: ANN401 # JSON
        deadline = None if timeout is None else anyio.current_time() + timeout
        repeats, first = 0, self._link
        while True:
            link = await self._usable_link(deadline)
            if deadline is not None:  # exactly `timeout` if possible, because errors show it
                left = timeout if link is first else round(deadline - anyio.current_time(), 3)
                params["timeout"] = max(0.001, left or 0.0)
            try:
                return await link.request(method, params, progress)
            except ClientError as error:
                if repeats == _MAX_REPEATS or not await self._may_repeat(method, error, link, deadline):
                    raise
            await anyio.sleep(_POLL * 2**repeats)  # not sooner than a daemon can restart
            repeats += 1

    async def _may_repeat(self, method: str, error: ClientError, link: Link, deadline: float | None) -> bool:
        """Return whether a failed request did not run, or changes nothing, and the daemon is restarting."""
        if self._open_link is None or self._is_closed:
            return False
        if isinstance(error, ConnectionClosed):
            if error.may_have_run and method not in _READING:
                return False
        elif error.data.get("stopping") is not True:
            return False
        if error.code:  # the daemon has responded, and closes the connection soon
            with anyio.CancelScope(deadline=_earlier(_RESTART_TIME, deadline)):
                await link.closed.wait()
        return link.was_lost

    async def _usable_link(self, deadline: float | None) -> Link:
        """Return the connection, opened again if the daemon has closed it. Raises ConnectionClosed, and
        CallTimedOut at the deadline: nothing was sent then.
        """
        link, failures = self._link, self._failures
        if not link.was_lost or self._open_link is None or self._is_closed:
            return link  # if it has ended, it says why
        with anyio.CancelScope(deadline=_earlier(math.inf, deadline)):
            async with self._opening:
                if self._link is link and self._failures == failures:
                    self._failure = f"it was not back within {_RESTART_TIME:g} s"
                    with anyio.move_on_after(_RESTART_TIME):
                        try:
                            self._link = await self._wait_opened(link, self._open_link)
                            if self._subscribed:
                                start_background_task(partial(self._follow, self._link, is_new=True))
                            return self._link
                        except NotRunning as error:
                            self._failure = str(error)
                    self._failures += 1
                if self._link is not link:
                    return self._link
            text = f"{link.close_reason}, and {self._failure}; nothing was sent"
            raise ConnectionClosed(text, data=NOT_SENT)
        raise CallTimedOut("the daemon is restarting; nothing was sent in time", "timeout", NOT_SENT)

    async def _wait_opened(self, lost: Link, open_link: Callable[[], Awaitable[Link]]) -> Link:
        """Return a connection to the next daemon. Raises NotRunning if none can be started."""
        pause = _POLL
        while True:
            is_listening = True
            link = None
            try:
                link = await open_link()
            except NotRunning:
                is_listening = False
            except ConnectionClosed:
                pass
            if self._is_closed:
                if link is not None:
                    link.abandon()
                raise ConnectionClosed(CLOSED_BY_US, data=NOT_SENT)
            if link is not None:
                return link
            is_late = anyio.current_time() - lost.closed_at >= _SUCCESSOR_TIME
            if self._start_daemon is not None and is_late and not is_listening:
                await self._start_daemon()
            else:
                await anyio.sleep(pause)
                pause = min(2 * pause, _MAX_POLL)

    async def subscribe(self, uri: str) -> None:
        """Subscribe to a resource, also on each later connection. Raises ClientError."""
        if self._link.handlers.resource_updated is None:
            raise TypeError("subscribe() needs connect(handlers=Handlers(resource_updated=…))")
        await self.request(SUBSCRIBE, {"uri": uri})
        if not self._subscribed:
            start_background_task(partial(self._follow, self._link, is_new=False))
        self._subscribed.add(uri)

    async def unsubscribe(self, uri: str) -> None:
        """Does nothing if there is no such subscription."""
        self._subscribed.discard(uri)
        await self.request(UNSUBSCRIBE, {"uri": uri})

    async def _follow(self, link: Link, *, is_new: bool) -> None:
        """Keep the subscriptions: make them on a new connection, and connect again when it was lost."""
        for uri in sorted(self._subscribed) if is_new else ():
            try:
                await link.request(SUBSCRIBE, {"uri": uri})
                await notify(link.handlers, UPDATED, {"uri": uri})  # it may have changed meanwhile
            except ClientError as error:
                log.warning("not subscribed again to %s: %s", uri, error)
        await link.closed.wait()
        with anyio.move_on_after(_RESTART_TIME):
            while link is self._link and link.was_lost and self._open_link and not self._is_closed:
                await anyio.sleep(_MAX_POLL)
                with suppress(ClientError):  # a daemon that was stopped is started only for a request
                    (await self._open_link()).abandon()
                    await self._usable_link(None)

    async def close(self) -> None:
        """Close the connection, from any task. Pending requests are cancelled, and later ones raise
        ConnectionClosed. Takes a second at most. Does nothing the second time."""
        self._is_closed = True
        await self._link.close()


def _earlier(seconds: float, deadline: float | None) -> float:
    """Return the time in so many seconds, or the deadline if that is earlier."""
    ends = anyio.current_time() + seconds
    return ends if deadline is None else min(ends, deadline)


def _describe_missing(path: str | None, error: Exception) -> str:
    option = ""
    with suppress(UnusablePath):
        option = "" if path is None or is_own_socket(path) else f" --socket {shlex.quote(path)}"
    return f"mcpd is not running at {path or 'its socket'} ({error}); start it: `mcpctl{option} daemon start`"


def is_own_socket(path: str) -> bool:
    """Return whether this is the socket that is used by default. Raises UnusablePath if there is none."""
    return os.path.abspath(path) == socket_path(os.environ)


async def open_connection(
    path: str | None = None,
    *,
    identity: Mapping[str, str],
    reopens: bool = False,
    start_daemon: Callable[[], Awaitable[None]] | None = None,
    handlers: Handlers | None = None,
) -> Connection:
    """Connect to the daemon at `path`, by default that of this user. The caller closes the connection.

    `identity`: the params of `mcpd/identify`; it may be empty. With `reopens`, the connection is opened again
    after the daemon has restarted. If it does not restart, `start_daemon` starts one. `handlers` answer
    servers. Raises NotRunning, and Unknown if there is no such profile.
    """

    async def open_link() -> Link:
        nonlocal path
        try:
            path = path or socket_path(os.environ)
            stream = await anyio.connect_unix(path)
        except (OSError, UnusablePath) as error:
            raise NotRunning(_describe_missing(path, error)) from None
        link = Link(stream, handlers)
        start_background_task(link.run)
        try:
            if identity:
                await link.request("mcpd/identify", identity)
            if handlers is not None:
                await open_session(link, handlers, identity)
        except BaseException:
            link.abandon()
            raise
        return link

    return Connection(await open_link(), open_link if reopens else None, start_daemon)
