"""The URL of one MCP server: sending requests, redirects within the origin, and refusals."""

from __future__ import annotations

import email.utils
import time
from collections.abc import Mapping

import httpx

from mcpd.model.errors import HttpRefused, LinkLost, McpdError
from mcpd.model.text import shorten
from mcpd.transports.credentials import (
    FORBIDDEN,
    MAX_REPEATS,
    UNAUTHORIZED,
    UNSIGNED,
    Refusal,
    access_error,
)
from mcpd.transports.http_client import bodies
from mcpd.transports.http_client.client_factory import SIGNATURE, HttpClient
from mcpd.transports.http_client.connection import (
    Abort,
    OnOutcome,
    describe_error,
    is_invalid,
    is_unreachable,
)
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
        self.watch_idle = client.watch_idle

    async def send(
        self, method: str, headers: Mapping[str, str], content: bytes | None = None
    ) -> httpx.Response:
        """Return the response with its body unread; `bodies.read` it if needed, and `bodies.close` it.

        Redirects with 307 and 308 within the origin are followed with method and content, others are not, so
        that no header reaches another origin. A request that was refused with HTTP 401, and so not executed,
        is sent once more if there is a newer token; nothing else is sent twice. Raises httpx.TransportError,
        HttpRefused, and McpdError as `Credentials.sign_when_ready` and `refused` do.
        """
        response = await self._client.send(method, self.url, headers, content)
        return await self.complete(response, method, headers, content)

    def send_with_callback(
        self, method: str, headers: Mapping[str, str], content: bytes, then: OnOutcome
    ) -> Abort | None:
        """Send immediately if possible; see `ConnectionPool.send_with_callback`.

        A response other than a success must be passed to `complete`.
        """
        return self._client.send_with_callback(method, self.url, headers, content, then)

    async def complete(
        self, response: httpx.Response, method: str, headers: Mapping[str, str], content: bytes | None
    ) -> httpx.Response:
        """Return this response, or that of the last repetition: after a redirect, or with a newer token.

        Raises as `send`.
        """
        redirects = repeats = 0
        while True:
            if response.status_code in (UNAUTHORIZED, FORBIDDEN):
                if repeats == MAX_REPEATS or not await self._may_repeat(response, repeats):
                    return response
                repeats += 1
            elif response.status_code in _REDIRECTING and response.headers.get("location"):
                await bodies.close(response)
                if redirects == _MAX_REDIRECTS:
                    raise HttpRefused(
                        f"{self.name}: more than {_MAX_REDIRECTS} redirects in a row",
                        server=self.name,
                        status=310,
                    )
                self.url = self._redirected(response)
                redirects += 1
            else:
                return response
            response = await self._client.send(method, self.url, headers, content)

    async def _may_repeat(self, response: httpx.Response, repeats: int) -> bool:
        """Return whether to send a refused request once more; the response has been read then."""
        client = self._client
        try:
            again = response.status_code == UNAUTHORIZED and not repeats
            again = again and await client.has_newer_secrets(response.request)
            if again and self.url == client.former_url:
                self.url = client.url
            if not again and client.credentials is not None:
                again = await client.credentials.refused(_refusal(response, repeats))
        except BaseException:
            await bodies.close(response)
            raise
        if again:
            await bodies.read_short(response)  # so that the connection can be used again
        return again

    def _redirected(self, response: httpx.Response) -> str:
        """Return the URL that a response redirects to. Raises HttpRefused unless it may be followed."""
        location = response.headers["location"]
        target = resolve_same_origin(self.url, location)
        if target is not None and response.status_code in (307, 308):
            return target
        where = shorten(redact_url(location, self.url))
        raise HttpRefused(
            f"{self.name}: HTTP {response.status_code}, redirects to {where}; "
            "nothing was sent there. If that is the right server, put its URL in the definition",
            server=self.name,
            status=response.status_code,
        )

    def refusal_error(self, response: httpx.Response, body: bytes = b"") -> McpdError:
        """Return the error for an unsuccessful status. It quotes only the beginning of the body."""
        status, client = response.status_code, self._client
        status_line = f"HTTP {status}" + (f" {response.reason_phrase}" if response.reason_phrase else "")
        login = access_error(
            self.name,
            status_line,
            _refusal(response),
            client.credentials,
            has_own_header=client.has_own_header,
            has_secrets=client.has_secrets,
        )
        if login is not None:
            return login
        excerpt = "" if "html" in response.headers.get("content-type", "") else shorten(body.strip())
        if excerpt == response.reason_phrase:  # many frameworks repeat the reason phrase
            excerpt = ""
        if status == FORBIDDEN and not excerpt:
            excerpt = "it does not permit this with the credentials it was sent"
        return HttpRefused(
            f"{self.name}: {status_line}" + (f": {excerpt}" if excerpt else ""),
            server=self.name,
            status=status,
            retry_after=parse_retry_after(response.headers.get("retry-after", "")),
        )

    def connection_lost(self, error: Exception, what: str) -> LinkLost:
        """Return the error for the caller of a failed request; `what` describes the request."""
        was_sent = not (is_unreachable(error) or is_invalid(error))
        return LinkLost(
            f"{self.name}: {describe_error(error)}" + (f"; {what} was not answered" if was_sent else ""),
            server=self.name,
            may_have_run=was_sent,
        )


def _refusal(response: httpx.Response, repeats: int = 0) -> Refusal:
    signature = response.extensions.get(SIGNATURE, UNSIGNED)
    return Refusal(response.status_code, response.headers, signature, repeats)


def parse_retry_after(value: str) -> float | None:
    """Return the seconds of either form of `Retry-After` (RFC 9110, 10.2.3); None if it is invalid."""
    if value.isascii() and value.isdigit():
        return min(float(value[:10]), MAX_RETRY_AFTER)
    try:
        moment = email.utils.parsedate_to_datetime(value).timestamp()
    except (ValueError, OverflowError):
        return None
    return min(max(0.0, moment - time.time()), MAX_RETRY_AFTER)
