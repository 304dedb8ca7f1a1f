"""Logging in with a device code: the person types a code on any other device (RFC 8628)."""

from __future__ import annotations

import time
from collections.abc import Iterable

import attrs
import trio

from mcpd.auth.discovery import Discovery, LoginError
from mcpd.auth.dpop import DpopKey
from mcpd.auth.guarded_fetch import MAX_REQUESTS, FetchError, GuardedFetch
from mcpd.auth.oauth.device_code import (
    SLOW_DOWN,
    DeviceCode,
    device_request,
    parse_device_answer,
    poll_parameters,
)
from mcpd.auth.oauth.token_requests import (
    TokenEndpoint,
    TokenError,
    TokenErrorKind,
    TokenSet,
    token_request,
)
from mcpd.auth.token_exchange import Now, request_tokens


async def request_device_code(
    fetch: GuardedFetch, found: Discovery, endpoint: TokenEndpoint, scopes: Iterable[str] | None
) -> DeviceCode:
    """Return the code for the person. Raises LoginError."""
    assert found.server.device_authorization_endpoint is not None
    request = device_request(
        found.server.device_authorization_endpoint, endpoint.client, resource=found.resource, scopes=scopes
    )
    try:
        answer = await fetch.post(request)
        return parse_device_answer(answer.status, answer.body)
    except (FetchError, TokenError) as error:
        raise LoginError("device code", error.message) from None


async def wait_for_device(
    fetch: GuardedFetch,
    code: DeviceCode,
    endpoint: TokenEndpoint,
    *,
    resource: str | None,
    requested: Iterable[str] | None,
    key: DpopKey | None = None,
    now: Now = time.time,
) -> TokenSet:
    """Poll until the person has entered the code. Raises LoginError when it expires, and TokenError.

    An answer that does not arrive is waited for again, with twice the interval (RFC 8628, 3.5).
    """
    interval = code.interval
    grant, parameters = poll_parameters(code, resource)
    with trio.move_on_after(code.lifetime):
        while True:
            await trio.sleep(interval)
            polling = attrs.evolve(fetch, left=MAX_REQUESTS)  # the limit of requests is for the discovery
            try:
                request = token_request(endpoint, grant, parameters)
                return await request_tokens(polling, request, requested=requested, key=key, now=now)
            except FetchError as error:
                if error.is_forbidden:
                    raise LoginError("device code", error.message) from None
                interval *= 2
            except TokenError as error:
                if error.kind is TokenErrorKind.SLOW_DOWN:
                    interval += SLOW_DOWN
                elif error.kind is not TokenErrorKind.PENDING:
                    raise
    raise LoginError("device code", "nobody entered the code in time")
