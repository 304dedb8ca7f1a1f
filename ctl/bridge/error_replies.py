"""The errors that a bridge answers with in the daemon's place; codes and members as the daemon's own."""

from __future__ import annotations

from msgspec import Raw

from ctl.bridge import envelope


def daemon_unreachable(key: bytes, method: str, why: envelope.Error | str) -> bytes:
    """There is no daemon, or it will not have us (then `why` is its own error). Nothing was sent."""
    if isinstance(why, str):
        words = f"{why}; {shortened(method)} was not sent, it did not run: try again"
        return _error(key, words, "daemon_unreachable", 3, may_have_run=False)
    members = {**envelope.members(why.data), "may_have_run": Raw(b"false")}
    return envelope.error(key, why.code, why.message, members)


def connection_lost(key: bytes, method: str, reason: str) -> bytes:
    """The daemon went away before it answered."""
    words = (
        f"{reason} while {shortened(method)} was under way; it may have run, so it was not sent again: "
        "look before you repeat it"
    )
    return _error(key, words, "link_lost", 6, may_have_run=True)


def response_timeout(key: bytes, method: str) -> bytes:
    words = f"mcpd has not answered {shortened(method)} in time"
    return _error(key, words, "timeout", 7, may_have_run=True)


def too_many_requests(key: bytes, method: str) -> bytes:
    words = f"too many requests are under way: {shortened(method)} was not sent, it did not run"
    return _error(key, words, "overloaded", 6, may_have_run=False)


def not_an_mcp_method(key: bytes, method: str) -> bytes:
    words = f"{shortened(method)}: only MCP passes through here; see mcpctl for the rest"
    return envelope.error(key, envelope.METHOD_NOT_FOUND, words)


def invalid_request(key: bytes, words: str) -> bytes:
    return envelope.error(key, envelope.INVALID_REQUEST, words)


def shortened(text: str) -> str:
    """What others wrote, as part of a sentence."""
    return text if len(text) <= 100 else f"{text[:100]}…"


def _error(key: bytes, words: str, code: str, exit_code: int, *, may_have_run: bool) -> bytes:
    facts = {"code": code, "exit": exit_code, "may_have_run": may_have_run, "retryable": True}
    return envelope.error(key, envelope.SERVER_ERROR, words, facts)
