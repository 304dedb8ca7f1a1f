"""The OpenRPC description of the control API is valid and matches the daemon."""

from __future__ import annotations

from typing import Any

import jsonschema  # type: ignore[import-untyped]  # it has no types of its own

from mcpd.api.control.methods import METHODS
from tests.e2e.conftest import Start, start
from tests.e2e.harness import fake

__all__ = ["start"]

ASKED: dict[str, dict[str, Any]] = {
    "mcpd/status": {},
    "mcpd/tools": {"server": "fake"},
    "mcpd/resources": {},
    "mcpd/prompts": {},
    "mcpd/connect": {"server": "fake", "wait": 1},
    "mcpd/servers/set": {"servers": {"x": {"command": "true"}}, "dry_run": True},
    "mcpd/config": {},
    "mcpd/call": {"server": "fake", "tool": "echo", "arguments": {}},
    "mcpd/logs": {"server": "fake"},
    "mcpd/attach": {"server": "fake"},
}


def test_daemon_describes_each_method_as_it_answers_it(start: Start) -> None:
    """Every schema is valid, every reference resolves, and responses match."""
    daemon = start({"fake": fake("--capabilities", "tools,resources,prompts")})
    daemon.wait_connected("fake")
    client = daemon.client()
    found = client.request("rpc.discover")

    def validator(schema: dict[str, Any]) -> Any:
        return jsonschema.Draft202012Validator({**schema, "components": found["components"]})

    assert found["openrpc"].startswith("1.")
    assert [method["name"] for method in found["methods"]] == sorted(METHODS)
    for method in found["methods"]:
        for part in [*method["params"], method["result"]]:
            jsonschema.Draft202012Validator.check_schema(part["schema"])
            list(validator(part["schema"]).iter_errors({}))  # raises if a reference does not resolve
    results = {method["name"]: validator(method["result"]["schema"]) for method in found["methods"]}
    for name, params in ASKED.items():
        answer = client.request(name, **params)
        assert [error.message for error in results[name].iter_errors(answer)] == [], name
