"""Prompts and resources: errors for missing ones and for incomplete results."""

from __future__ import annotations

import sys

import pytest

from tests.e2e.conftest import Start
from tests.e2e.harness import Json, Refused, fake
from tests.example_server import TEST_SERVER

TEST = {"command": sys.executable, "args": [TEST_SERVER]}


MISSING: tuple[tuple[str, str, Json, str, str], ...] = (
    ("auto", "mcpd/prompt", {"prompt": "gret"}, "unknown_prompt", "did you mean greet?"),
    ("auto", "mcpd/prompt", {"prompt": "greet"}, "invalid_arguments", '"name" is a required argument'),
    ("modern", "mcpd/read", {"uri": "test://greetin"}, "unknown_resource", "did you mean test://greeting"),
    ("legacy", "mcpd/read", {"uri": "test://greetin"}, "unknown_resource", "did you mean test://greeting"),
    ("auto", "mcpd/read", {"uri": "zzz://9"}, "unknown_resource", "`mcpctl resources auto` lists"),
)


def test_missing_name_has_its_own_error_with_similar_names(start: Start) -> None:
    """Exit code 5 means no such server, tool, resource or prompt, whichever error the server returns."""
    eras = ("auto", "modern", "legacy")
    daemon = start({era: {**TEST, "era": era} for era in eras})
    daemon.wait_connected(*eras)
    for server, method, params, code, words in MISSING:
        with pytest.raises(Refused) as refused:
            daemon.client().request(method, server=server, **params)
        assert refused.value.code == code, params
        assert refused.value.body["data"]["exit"] == (2 if code == "invalid_arguments" else 5)
        assert words in str(refused.value)


def test_timeout_error_names_the_setting_that_applies(start: Start) -> None:
    """There are four such settings, and raising another one has no effect."""
    daemon = start(
        {
            "silent": fake(timeout=300),
            "tool": fake(toolTimeouts={"drop": 300}),
            "all": fake(timeout=400, maxTimeout=300),
        }
    )
    daemon.wait_connected("silent", "tool", "all")
    client = daemon.client()
    tries: tuple[tuple[str, Json, str], ...] = (
        ("silent", {}, r"\(`timeout` in its definition sets the limit\)"),
        ("tool", {}, r"\(`toolTimeouts` in its definition sets the limit\)"),
        ("all", {}, r"\(`maxTimeout` in its definition sets the limit\)"),
        ("tool", {"timeout": 0.2}, r"\(the caller set the limit\)"),
    )
    for server, more, words in tries:
        with pytest.raises(Refused, match=words) as refused:
            client.call(server, "drop", {}, **more)
        assert refused.value.code == "timeout"
    attached = daemon.client()
    attached.request("mcpd/attach", server="tool")
    with pytest.raises(Refused, match="toolTimeouts"):
        attached.request("tools/call", name="drop", arguments={})
