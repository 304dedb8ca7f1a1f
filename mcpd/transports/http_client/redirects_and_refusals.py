"""The URL of one MCP server: sending requests, redirects within the origin, and errors for refusals."""

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
from mcpd.transports.http_client.connection_errors import describe_error, is_invalid, is_unreachable
from mcpd.wire.url import redact_url, resolve_same_origin

_MAX_REDIRECTS = 3
_REDIRECTING = frozenset((301, 302, 303, 307, 308))
MAX_RETRY_AFTER = 3600.0


class HttpEndpoint:
    """`url` changes when the server redirects permanently or temporarily within its own origin."""

    def __init__(self, name: str, client: HttpClient, url: str) -> None:
        self.name = name
        self.url = url
        self._client = client

    async def send(
        self, method: str, headers: Mapping[str, str], content: bytes | None = None
    ) -> httpx.Response:
        """Return the response with its body unread; `bodies.read` it if needed, and `bodies.close` it.

        Redirects with 307 and 308 within the origin are followed with method and content, others are not, so
        that no header reaches another origin. Raises httpx.TransportError, HttpRefused.
        """
        response = await self._client.send(method, self.url, headers, content)
        return await self.follow_redirects(response, method, headers, content)

    def send_with_callback(
        self, method: str, headers: Mapping[str, str], content: bytes, then: OnOutcome
    ) -> Abort | None:
        """Send immediately if possible; see `ConnectionPool.send_with_callback`.

        A response other than a success must be passed to `follow_redirects`.
        """
        return self._client.send_with_callback(method, self.url, headers, content, then)

    async def follow_redirects(
        self, response: httpx.Response, method: str, headers: Mapping[str, str], content: bytes | None
    ) -> httpx.Response:
        """Return this response, or the one it redirects to. Raises as `send`."""
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
                    f"{self.name}: HTTP {response.status_code}, redirects to {where}; "
                    "nothing was sent there. If that is the right server, put its URL in the definition",
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
        """Return the error for an unsuccessful status. It quotes only the beginning of the body."""
        status = response.status_code
        status_line = f"HTTP {status}" + (f" {response.reason_phrase}" if response.reason_phrase else "")
        if status in (401, 403):
            given = self._client.has_credentials
            advice = (
                "the `Authorization` header in its definition was rejected"
                if given
                else "add an `Authorization` header to `headers` in its definition"
            )
            return NeedsAuth(f"{self.name}: {status_line}: {advice}", server=self.name, status=status)
        excerpt = "" if "html" in response.headers.get("content-type", "") else shorten(body.strip())
        if excerpt == response.reason_phrase:  # many frameworks repeat the reason phrase
            excerpt = ""
        return HttpRefused(
            f"{self.name}: {status_line}" + (f": {excerpt}" if excerpt else ""),
            server=self.name,
            status=status,
            retry_after=_retry_after(response.headers.get("retry-after", "")),
        )

    def connection_lost(self, error: Exception, what: str) -> LinkLost:
        """Return the error for the caller of a failed request; `what` describes the request."""
        return LinkLost(
            f"{self.name}: {describe_error(error)}; {what} was not answered",
            server=self.name,
            may_have_run=not (is_unreachable(error) or is_invalid(error)),
        )


def _retry_after(value: str) -> float | None:
    """Return the seconds of either form of `Retry-After` (RFC 9110, 10.2.3); None if it is invalid."""
    if value.isascii() and value.isdigit():
        return min(float(value[:10]), MAX_RETRY_AFTER)
    try:
        moment = email.utils.parsedate_to_datetime(value).timestamp()
    except (ValueError, OverflowError):
        return None
    return min(max(0.0, moment - time.time()), MAX_RETRY_AFTER)
