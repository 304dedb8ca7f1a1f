"""One HTTP request to a server: which redirects are followed, and what a refusal means."""

from __future__ import annotations

import email.utils
import time
from collections.abc import Mapping

import httpx

from mcpd.model.errors import HttpRefused, LinkLost, McpdError, NeedsAuth
from mcpd.model.text import shorten
from mcpd.transports.http_client import bodies
from mcpd.transports.http_client.client_factory import HttpClient
from mcpd.transports.http_client.connection import Abort, OnOutcome
from mcpd.transports.http_client.connection_errors import describe_error, was_not_sent
from mcpd.wire.url import redact_url, resolve_same_origin

_MAX_REDIRECTS = 3
_REDIRECTING = frozenset((301, 302, 303, 307, 308))
MAX_RETRY_AFTER = 3600.0


class HttpEndpoint:
    """Where a server listens. `url` moves when the server says so, within its own origin only."""

    def __init__(self, name: str, client: HttpClient, url: str) -> None:
        self.name = name
        self.url = url
        self._client = client

    async def send(
        self, method: str, headers: Mapping[str, str], content: bytes | None = None
    ) -> httpx.Response:
        """The response, its body unread: `bodies.read` it or leave it, then `bodies.close` it.

        Method and content survive a redirect (307, 308) within the origin; no other is followed, so
        that no header of ours ever reaches another origin. Raises httpx.TransportError, HttpRefused.
        """
        response = await self._client.send(method, self.url, headers, content)
        return await self.follow_redirects(response, method, headers, content)

    def send_with_callback(
        self, method: str, headers: Mapping[str, str], content: bytes, then: OnOutcome
    ) -> Abort | None:
        """Send at once, if that can be, and have `then` called; see `Engine.begin`. A response that `then` is
        given has to go through `arrived`, unless it is a success."""
        return self._client.send_with_callback(method, self.url, headers, content, then)

    async def follow_redirects(
        self, response: httpx.Response, method: str, headers: Mapping[str, str], content: bytes | None
    ) -> httpx.Response:
        """The response to go by: this one, or the one it redirects to. Raises as `send`."""
        for _ in range(_MAX_REDIRECTS):
            if response.status_code not in _REDIRECTING:
                return response
            location = response.headers.get("location")
            if not location:
                return response
            await bodies.close(response)
            target = resolve_same_origin(self.url, location)
            if target is None or response.status_code not in (307, 308):
                where = shorten(redact_url(location, self.url))
                raise HttpRefused(
                    f"{self.name}: HTTP {response.status_code}, it redirects to {where}; "
                    "nothing was sent there: if that is the right server, put its URL into the definition",
                    server=self.name,
                    status=response.status_code,
                )
            self.url = target
            response = await self._client.send(method, self.url, headers, content)
        await bodies.close(response)
        raise HttpRefused(
            f"{self.name}: more than {_MAX_REDIRECTS} redirects in a row", server=self.name, status=310
        )

    def refusal_error(self, response: httpx.Response, body: bytes = b"") -> McpdError:
        """The error for a status that is no success; nothing of the body but a few words is quoted."""
        status = response.status_code
        said = f"HTTP {status}" + (f" {response.reason_phrase}" if response.reason_phrase else "")
        if status in (401, 403):
            given = self._client.has_credentials
            advice = (
                "it refuses the `Authorization` header in the definition"
                if given
                else "put an `Authorization` header into `headers` of its definition"
            )
            return NeedsAuth(f"{self.name}: {said}: {advice}", server=self.name, status=status)
        words = "" if "html" in response.headers.get("content-type", "") else shorten(body.strip())
        if words == response.reason_phrase:  # which is what many frameworks say by themselves
            words = ""
        return HttpRefused(
            f"{self.name}: {said}" + (f": {words}" if words else ""),
            server=self.name,
            status=status,
            retry_after=_retry_after(response.headers.get("retry-after", "")),
        )

    def connection_lost(self, error: Exception, what: str) -> LinkLost:
        """What a failed request means to whoever asked for `what`."""
        return LinkLost(
            f"{self.name}: {describe_error(error)}; {what} was not answered",
            server=self.name,
            may_have_run=not was_not_sent(error),
        )


def _retry_after(value: str) -> float | None:
    """Seconds, of either spelling of the header; None for what is neither."""
    if value.isascii() and value.isdigit():
        return min(float(value[:10]), MAX_RETRY_AFTER)
    try:
        moment = email.utils.parsedate_to_datetime(value).timestamp()
    except (ValueError, OverflowError):
        return None
    return min(max(0.0, moment - time.time()), MAX_RETRY_AFTER)
