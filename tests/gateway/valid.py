"""Checks that what a client or a server receives is valid by the schema of its revision."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]  # it has no types

from tests.e2e.harness import Json

SCHEMAS = Path(__file__).parent.parent / "schema"
RESULTS = {
    "initialize": "InitializeResult",
    "server/discover": "DiscoverResult",
    "ping": "EmptyResult",
    "logging/setLevel": "EmptyResult",
    "resources/subscribe": "EmptyResult",
    "resources/unsubscribe": "EmptyResult",
    "tools/list": "ListToolsResult",
    "tools/call": "CallToolResult",
    "prompts/list": "ListPromptsResult",
    "prompts/get": "GetPromptResult",
    "resources/list": "ListResourcesResult",
    "resources/templates/list": "ListResourceTemplatesResult",
    "resources/read": "ReadResourceResult",
    "completion/complete": "CompleteResult",
    "subscriptions/listen": "SubscriptionsListenResult",
}


@functools.cache
def _validator(version: str, definition: str) -> Any:
    document = json.loads((SCHEMAS / f"schema-{version}.json").read_text())
    place = "$defs" if "$defs" in document else "definitions"
    kind = jsonschema.validators.validator_for(document)
    return kind({**document, "$ref": f"#/{place}/{definition}"})


def complaints(version: str, message: Json, method: str = "") -> list[str]:
    """Return what is wrong with a message to a client of `version`; for a response, `method` is its
    request's."""
    if "method" in message:
        kind = "ServerRequest" if "id" in message else "ServerNotification"
        checked: Any = message
    elif "error" in message:
        kind = "JSONRPCMessage"
        checked = message
    else:
        asked = message["result"].get("resultType") == "input_required"
        kind = "InputRequiredResult" if asked else RESULTS.get(method, "Result")
        checked = message["result"]
    return [
        f"{kind} {list(e.path)}: {e.message[:300]}" for e in _validator(version, kind).iter_errors(checked)
    ]


ANSWERS = {
    "ping": "EmptyResult",
    "roots/list": "ListRootsResult",
    "sampling/createMessage": "CreateMessageResult",
    "elicitation/create": "ElicitResult",
}


def complaints_of_server(version: str, message: Json, method: str = "") -> list[str]:
    """Return what is wrong with a message to a server of `version`; for a response, `method` is its
    request's.

    The messages that ask for a revision are valid in that one.
    """
    if message.get("method") == "server/discover":
        version = "2026-07-28"
    elif message.get("method") == "initialize":
        version = message["params"]["protocolVersion"]
    if "method" in message:
        kind, checked = "ClientRequest" if "id" in message else "ClientNotification", message
    elif "error" in message:
        kind, checked = "JSONRPCMessage", message
    else:
        kind, checked = ANSWERS[method], message["result"]
    return [
        f"{kind} {list(e.path)}: {e.message[:300]}" for e in _validator(version, kind).iter_errors(checked)
    ]
