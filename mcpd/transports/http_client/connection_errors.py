"""What broke a connection to an HTTP server, in words that help; and whether anything had left by then."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator

import httpx

from mcpd.model.text import shorten
from mcpd.transports.http_client.dial import CONNECT_TIMEOUT

_NO_TLS = ("WRONG_VERSION_NUMBER", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE")
"""OpenSSL's words for an answer that is no TLS at all; the last one since OpenSSL 3.2."""


def was_not_sent(error: Exception) -> bool:
    """Whether a request surely never left."""
    return isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.ProxyError | httpx.PoolTimeout)


def describe_error(error: Exception) -> str:
    """A transport's error in words that help."""
    if isinstance(error, httpx.ConnectTimeout):
        return f"it cannot be reached: no connection within {CONNECT_TIMEOUT:g} s"
    reason = _os_reason([cause for cause in _causes(error) if isinstance(cause, OSError)])
    if isinstance(error, httpx.ProxyError):  # which names the proxy
        return f"it cannot be reached: {shorten(str(error))}" + (f": {reason}" if reason else "")
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return (
                f"its TLS certificate is refused: {cause.verify_message} "
                "(a private authority goes into `caFile` of its definition)"
            )
        if isinstance(cause, ssl.SSLError) and cause.reason in _NO_TLS:
            return "TLS failed: what answers speaks none (is it http:// instead of https://?)"
        if isinstance(cause, ssl.SSLError):
            return f"TLS failed: {cause.reason or cause}"
    if isinstance(error, httpx.ConnectError):
        return f"it cannot be reached: {shorten(reason or str(error) or 'connecting failed')}"
    return f"the connection broke: {shorten(reason or str(error) or type(error).__name__)}"


def _os_reason(errors: list[OSError]) -> str:
    """The system's own words for the innermost of them: others' are full of addresses nobody has written."""
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
