"""The device authorization grant (RFC 8628): a login whose browser is on another machine."""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import urlencode

import attrs

from mcpd.auth.oauth.client_authentication import ClientAuthentication
from mcpd.auth.oauth.documents import json_object, quote, string
from mcpd.auth.oauth.registration import DEVICE_GRANT
from mcpd.auth.oauth.token_requests import TokenError, TokenErrorKind, TokenRequest, parse_token_answer
from mcpd.auth.oauth.well_known import is_usable

_DEFAULT_INTERVAL = 5.0
_MAX_INTERVAL = 60.0
_MAX_LIFETIME = 1800.0
SLOW_DOWN = 5.0
"""Seconds by which `slow_down` increases the interval (RFC 8628, 3.5)."""


@attrs.frozen
class DeviceCode:
    """What the person needs, and what the client polls with. Times are in seconds."""

    device_code: str = attrs.field(repr=False)
    user_code: str
    """To be typed at `verification_uri`; printable, at most 40 characters."""
    verification_uri: str
    verification_uri_complete: str | None
    lifetime: float
    interval: float


def device_request(
    url: str, client: ClientAuthentication, *, resource: str | None, scopes: Iterable[str] | None
) -> TokenRequest:
    """Return the request for a device code (RFC 8628, 3.1)."""
    fields = client.parameters()
    fields.setdefault("client_id", client.client_id)
    if scope := " ".join(scopes or ()):
        fields["scope"] = scope
    if resource is not None:
        fields["resource"] = resource
    headers = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"}
    return TokenRequest(url, headers | client.headers(), urlencode(fields).encode())


def parse_device_answer(status: int, body: bytes) -> DeviceCode:
    """Return the codes (RFC 8628, 3.2). Raises TokenError, and nothing else."""
    document = json_object(body)
    if status != 200 or document is None or "error" in document:
        parse_token_answer(status, body, sent_at=0)
        raise TokenError(TokenErrorKind.UNUSABLE, f"HTTP {status} without a device code", status=status)
    device, user = string(document, "device_code"), string(document, "user_code")
    # Google's early implementation calls it verification_url.
    page = string(document, "verification_uri") or string(document, "verification_url")
    complete = string(document, "verification_uri_complete")
    if device is None or user is None or page is None or not is_usable(page):
        raise TokenError(TokenErrorKind.UNUSABLE, "its answer has no usable device code", status=status)
    return DeviceCode(
        device_code=device,
        user_code=re.sub(r"\s+", " ", quote(user))[:40],
        verification_uri=page,
        verification_uri_complete=complete if complete is not None and is_usable(complete) else None,
        lifetime=min(_seconds(document.get("expires_in"), _MAX_LIFETIME), _MAX_LIFETIME),
        interval=min(_seconds(document.get("interval"), _DEFAULT_INTERVAL), _MAX_INTERVAL),
    )


def poll_parameters(code: DeviceCode, resource: str | None) -> tuple[str, dict[str, str]]:
    """Return the grant that asks whether the person has finished (RFC 8628, 3.4)."""
    fields = {"device_code": code.device_code}
    return DEVICE_GRANT, fields | ({"resource": resource} if resource is not None else {})


def _seconds(value: object, default: float) -> float:
    usable = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < 1e9
    return float(value) if usable else default  # type: ignore[arg-type]
