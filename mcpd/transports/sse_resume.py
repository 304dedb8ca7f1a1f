"""Event streams that are taken up where they broke: of one request, or of what no request asked for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

import attrs
import httpx
import trio

from mcpd.model.errors import HttpRefused, ProtocolViolation
from mcpd.transports.http_client import bodies
from mcpd.transports.http_client.connection_errors import describe_error
from mcpd.transports.http_response_messages import EVENT_STREAM
from mcpd.transports.response_stream import StreamState
from mcpd.wire.event_stream import EventTooLong

_MAX_RESUMES = 5
"""Attempts in a row, without a single event, to resume a stream."""
_MAX_LISTEN_PAUSE = 60.0
_STABLE_AFTER = 10.0
"""Seconds after which a stream that was closed counts as one that worked."""
_TOO_MANY_REQUESTS = 429


class ReadStream(Protocol):
    """Take every event of a response; say why it ended. See `events.hear` for what is raised."""

    async def __call__(self, response: httpx.Response, heard: StreamState) -> str: ...


@attrs.frozen
class ResumableStreams:
    """Streams of one server. `ask` sends the GET that takes one up behind an event, or begins one (None); it
    raises httpx.TransportError, HttpRefused."""

    get_stream: Callable[[str | None], Awaitable[httpx.Response]]

    async def follow(
        self,
        response: httpx.Response,
        read_stream: ReadStream,
        is_pending: Callable[[], bool],
        *,
        resumable: bool,
    ) -> str:
        """Hear one request's stream while somebody `waits` for its answer; the reason why it cannot be
        taken up again, which is of no interest when nobody waits any more."""
        heard = StreamState()
        why = await read_stream(response, heard)
        attempts = 0
        while is_pending():
            if not resumable or heard.last_id is None or attempts == _MAX_RESUMES:
                return why
            attempts += 1
            await trio.sleep(heard.retry * (1 if heard.events else 2 ** (attempts - 1)))
            heard.events = 0
            try:
                resumed = await self.get_stream(heard.last_id)
            except httpx.TransportError as error:
                why = describe_error(error)
                continue
            try:
                if not resumed.is_success or bodies.content_type(resumed) != EVENT_STREAM:
                    return f"its event stream ended, and HTTP {resumed.status_code} instead of resuming"
                why = await read_stream(resumed, heard)
            finally:
                await bodies.close(resumed)
            if heard.events:
                attempts = 0
        return why

    async def listen(
        self,
        read_stream: ReadStream,
        *,
        is_over: Callable[[], bool],
        on_gap: Callable[[], None],
        on_open: Callable[[], None],
        on_unparsable: Callable[[bytes], None],
    ) -> None:
        """Keep a stream open for what no request asked for; return when it is not offered, or is over.

        `hears` is called when the server has our ear, `missed` before it when something may have been said
        meanwhile; `junk` with what is no event stream.
        """
        heard = StreamState()
        pause, first = heard.retry, True
        while not is_over():
            began = trio.current_time()
            try:
                response = await self.get_stream(heard.last_id)
                try:
                    if not _is_offered(response):
                        return
                    if response.is_success:
                        if not first and heard.last_id is None:
                            on_gap()
                        first = False
                        on_open()
                        await read_stream(response, heard)
                finally:
                    await bodies.close(response)
            except httpx.TransportError:
                pass  # whether it can be reached at all is found out by whoever asks it something
            except HttpRefused:
                return
            except (EventTooLong, ProtocolViolation) as error:
                on_unparsable(str(error).encode())
            lasted = trio.current_time() - began >= _STABLE_AFTER
            pause = heard.retry if lasted or heard.events else min(2 * pause, _MAX_LISTEN_PAUSE)
            heard.events = 0
            await trio.sleep(pause)


def _is_offered(response: httpx.Response) -> bool:
    """Whether there is such a stream, now or later; 405 and its kin say that there is none."""
    if response.is_success:
        return bodies.content_type(response) == EVENT_STREAM
    return not 400 <= response.status_code < 500 or response.status_code == _TOO_MANY_REQUESTS
