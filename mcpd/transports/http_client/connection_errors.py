"""Describing why an HTTP connection failed, and whether the request may have been sent."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator

import httpx

from mcpd.model.text import shorten
from mcpd.transports.http_client.dial import CONNECT_TIMEOUT

_NO_TLS = ("WRONG_VERSION_NUMBER", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE")
"""OpenSSL's reasons for a response that is not TLS; the last one since OpenSSL 3.2."""


def is_unreachable(error: Exception) -> bool:
    """Return whether there was no connection, so that no other request would be sent either."""
    return isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.ProxyError | httpx.PoolTimeout)


def is_invalid(error: Exception) -> bool:
    """Return whether this request cannot be sent to any server."""
    return isinstance(error, httpx.LocalProtocolError | httpx.UnsupportedProtocol)


def describe_error(error: Exception) -> str:
    """Return a readable message for a transport error."""
    if is_invalid(error):
        return f"the request cannot be sent: {shorten(str(error))}"
    if isinstance(error, httpx.ConnectTimeout):
        return f"it cannot be reached: no connection within {CONNECT_TIMEOUT:g} s"
    reason = _os_reason([cause for cause in _causes(error) if isinstance(cause, OSError)])
    if isinstance(error, httpx.ProxyError):  # its message names the proxy
        return f"it cannot be reached: {shorten(str(error))}" + (f": {reason}" if reason else "")
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return (
                f"its TLS certificate was rejected: {cause.verify_message} "
                "(for a private CA, set `caFile` in its definition)"
            )
        if isinstance(cause, ssl.SSLError) and cause.reason in _NO_TLS:
            return "TLS failed: the server does not use TLS (should the URL start with http://?)"
        if isinstance(cause, ssl.SSLError):
            return f"TLS failed: {cause.reason or cause}"
    if isinstance(error, httpx.ConnectError):
        return f"it cannot be reached: {shorten(reason or str(error) or 'connection failed')}"
    return f"the connection broke: {shorten(reason or str(error) or type(error).__name__)}"


def _os_reason(errors: list[OSError]) -> str:
    """Return the system's message for the innermost error; others contain addresses the user never wrote."""
    for error in reversed(errors):
        if error.errno is not None and error.errno > 0:
            return os.strerror(error.errno)
    return next((error.strerror for error in reversed(errors) if error.strerror), "")


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: list[BaseException] = [error]
    while seen and len(seen) < 20:
        cause = seen.pop()
        yield cause
        if isinstance(cause, BaseExceptionGroup):
            seen += cause.exceptions
        following = cause.__cause__ or cause.__context__
        if following is not None:
            seen.append(following)
