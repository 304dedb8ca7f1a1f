"""What calls return and raise."""

from __future__ import annotations

import attrs
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


@attrs.frozen
class Issue:
    number: int
    title: str = ""


def test_result_as_a_type_of_the_program() -> None:
    """From structured content, or from text that is JSON."""
    issue = Issue(number=7, title="a")
    assert ToolResult(success=True, data={"number": 7, "title": "a"}).as_(Issue) == issue
    assert ToolResult(success=True, output='[{"number": 7, "title": "a"}]').as_(list[Issue]) == [issue]
    assert ToolResult(success=True, data={"result": [{"number": 1}]}).as_(list[Issue]) == [Issue(1)]
    assert ToolResult(success=True, data={"result": 3}).as_(int) == 3
    assert ToolResult(success=True, output="3").as_(str) == "3"
    misfits: tuple[object, ...] = ({"number": "x"}, {"result": {"number": "x"}}, [], 3)
    for data in misfits:
        with pytest.raises(ValueError, match="the result is no Issue: "):
            ToolResult(success=True, data=data).as_(Issue)
    with pytest.raises(ValueError, match="no Issue"):
        ToolResult(success=True, output="no JSON").as_(Issue)
