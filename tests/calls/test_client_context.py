"""What a client declared, and what of it a modern server gets."""

from __future__ import annotations

import pytest

from mcpd.calls.client_context import (
    forwarded_capabilities,
    make_client_context,
)
from mcpd.protocol.extensions import TASKS
from tests.gateway.mcp_client import MODERN
from tests.gateway.model import Json


@pytest.mark.parametrize(
    ("declared", "modern", "is_single", "forwarded"),
    [
        ({}, True, True, {}),
        ({"elicitation": {}}, False, True, {"elicitation": {"form": {}}}),
        ({"elicitation": {"url": {}}}, False, True, {"elicitation": {"url": {}}}),
        ({"sampling": {"a": 1}, "tasks": {}}, True, True, {"sampling": {"a": 1}}),
        ({"sampling": True, "roots": {"listChanged": True}}, True, True, {"roots": {}}),
        ({"extensions": {"x": {}}}, True, True, {"extensions": {"x": {}}}),
        ({"extensions": {"x": {}, TASKS: {}}}, True, True, {"extensions": {"x": {}, TASKS: {}}}),
        ({"extensions": {"x": {}, TASKS: {}}}, True, False, {"extensions": {"x": {}}}),
        ({"extensions": {"x": {}, TASKS: {}}}, False, True, {"extensions": {"x": {}}}),
        ({"extensions": 5}, True, True, {}),
    ],
)
def test_forwarded_capabilities(declared: Json, modern: bool, is_single: bool, forwarded: Json) -> None:
    context = make_client_context(MODERN, declared, modern=modern)
    assert forwarded_capabilities(context, is_single_server=is_single) == forwarded
