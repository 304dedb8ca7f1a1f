"""What calls return and raise."""

from __future__ import annotations

import pytest

from mcpd.client import (
    ClientError,
    ConnectionClosed,
    Denied,
    InvalidCall,
    LimitReached,
    NotRunning,
    ServerRefused,
    ToolResult,
)
from mcpd.client.errors import NOT_SENT, error_from_response
from mcpd.model import errors

IMAGE = {"type": "image", "data": "aGk=", "mimeType": "image/png", "_meta": {"n": [1, None]}}


def test_content_blocks_are_dicts() -> None:
    result = ToolResult.of({"success": True, "output": "[image]", "data": {"a": 1}, "content": [IMAGE]})
    (block,) = result.content
    assert block == IMAGE
    assert (result.data, result.error, result.warnings) == ({"a": 1}, None, ())


def response(error: errors.McpdError) -> ClientError:
    return error_from_response({"message": error.message, "data": error.data()})


def test_request_that_the_daemon_does_not_read_is_an_invalid_call() -> None:
    """The client does not count what is outside of strings, but the daemon limits it, too."""
    refused = error_from_response({"code": -32600, "message": "a message with more than 8 bytes"})
    assert type(refused) is InvalidCall
    assert not refused.may_have_run


def test_policies_have_their_own_exceptions() -> None:
    """Both are still caught as ServerRefused, as before."""
    denied = response(errors.Denied("fs: no", server="fs", rule="$.settings.policies[2]"))
    assert type(denied) is Denied
    assert (denied.rule, denied.may_have_run, denied.code) == ("$.settings.policies[2]", False, "denied")
    limited = response(errors.LimitReached("fs: wait", server="fs", rule="$.x", retry_after=7))
    assert type(limited) is LimitReached
    assert (limited.rule, limited.retry_after, limited.may_have_run) == ("$.x", 7, False)
    for error in (denied, limited):
        with pytest.raises(ServerRefused):
            raise error


def test_errors_without_a_daemon_have_the_code_of_mcpctl() -> None:
    assert NotRunning("gone").code == ConnectionClosed("gone", data=NOT_SENT).code == "daemon_unreachable"
    facts = {"code": "link_lost", "daemon_stopped": True}
    stopped = error_from_response({"message": "stopped", "data": facts})
    assert (type(stopped), stopped.code) == (ConnectionClosed, "link_lost")
