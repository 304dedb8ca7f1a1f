"""The OpenRPC description of the control API is valid and matches the daemon."""

from __future__ import annotations

import json
from typing import Any

import jsonschema  # type: ignore[import-untyped]  # it has no types of its own
import pytest

from mcpd.api.control.methods import METHODS, decode_params, openrpc_document
from mcpd.model.errors import InvalidArguments
from tests.e2e.conftest import start
from tests.e2e.harness import fake

__all__ = ["start"]

Start = Any


def described() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(openrpc_document())
    return found


def schema(inner: dict[str, Any]) -> Any:
    return jsonschema.Draft202012Validator({**inner, "components": described()["components"]})


def test_document_is_valid_openrpc() -> None:
    """Each method occurs once, every schema is valid, and every reference resolves."""
    found = described()
    names = [method["name"] for method in found["methods"]]

    assert found["openrpc"].startswith("1.")
    assert names == sorted(METHODS)
    for method in found["methods"]:
        assert method["summary"]
        assert method["paramStructure"] == "by-name"
        for part in [*method["params"], method["result"]]:
            assert part["name"]
            jsonschema.Draft202012Validator.check_schema(part["schema"])
            list(schema(part["schema"]).iter_errors({}))  # raises if a reference does not resolve


def test_daemon_responses_match_the_description(start: Start) -> None:
    daemon = start({"fake": fake("--capabilities", "tools,resources,prompts")})
    daemon.wait_connected("fake")
    results = {method["name"]: schema(method["result"]["schema"]) for method in described()["methods"]}
    client = daemon.client()
    asked: dict[str, dict[str, Any]] = {
        "mcpd/status": {},
        "mcpd/server": {"server": "fake"},
        "mcpd/tools": {"server": "fake"},
        "mcpd/resources": {},
        "mcpd/prompts": {},
        "mcpd/connect": {"server": "fake", "wait": 1},
        "mcpd/servers/set": {"servers": {"x": {"command": "true"}}, "dry_run": True},
        "mcpd/config": {},
        "mcpd/version": {},
        "mcpd/call": {"server": "fake", "tool": "echo", "arguments": {}},
        "mcpd/logs": {"server": "fake"},
        "mcpd/attach": {"server": "fake"},
    }
    for method, params in asked.items():
        answer = client.request(method, **params)
        assert [error.message for error in results[method].iter_errors(answer)] == [], method


@pytest.mark.parametrize("method", METHODS)
def test_unknown_parameters_are_rejected_with_their_path(method: str) -> None:
    """Ignoring a misspelt option would silently use its default."""

    with pytest.raises(InvalidArguments) as refused:
        decode_params(method, {"no_such_thing": 1}, METHODS[method].params)
    assert any("no_such_thing" in problem.message for problem in refused.value.problems)
