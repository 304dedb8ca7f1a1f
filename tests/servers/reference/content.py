"""What the reference server offers: tools, prompts and resources, as the values that go over the wire."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

Json = dict[str, Any]

IMAGE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR42mP4z8AAAAMBAQD3A0FDAAAAAElFTkSuQmCC"
"""One pixel, as PNG."""
AUDIO = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAIA+AAACABAAZGF0YQAAAAA="
"""No sample at all, as WAV."""


def text(what: str) -> Json:
    return {"type": "text", "text": what}


def image() -> Json:
    return {"type": "image", "data": IMAGE, "mimeType": "image/png"}


def embedded(uri: str, what: str, mime: str = "text/plain") -> Json:
    return {"type": "resource", "resource": {"uri": uri, "mimeType": mime, "text": what}}


def form(**fields: Json) -> Json:
    """The schema of a form whose fields must all be filled in."""
    return {"type": "object", "properties": fields, "required": list(fields)}


# ── tools ───────────────────────────────────────────────────────────────────────────────────────────────

NO_ARGUMENTS: Json = {"type": "object", "properties": {}}
STRING: Json = {"type": "string"}

PLAIN: dict[str, list[Json]] = {
    "test_simple_text": [text("This is a simple text response for testing.")],
    "test_image_content": [image()],
    "test_audio_content": [{"type": "audio", "data": AUDIO, "mimeType": "audio/wav"}],
    "test_embedded_resource": [embedded("test://embedded-resource", "This is an embedded resource.")],
    "test_multiple_content_types": [
        text("Multiple content types test:"),
        image(),
        embedded("test://mixed-content-resource", '{"test":"data","value":123}', "application/json"),
    ],
}
"""Tools that always answer the same."""

JSON_SCHEMA_2020_12: Json = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": STRING, "city": STRING},
        }
    },
    "properties": {
        "name": STRING,
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": STRING,
        "email": STRING,
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}

INPUTS: dict[str, Json] = {
    "echo": form(text=STRING),
    "json_schema_2020_12_tool": JSON_SCHEMA_2020_12,
    "test_sampling": form(prompt=STRING),
    "test_elicitation": form(message=STRING),
    "test_x_mcp_header": {
        "type": "object",
        "properties": {"region": {"type": "string", "x-mcp-header": "Region"}},
    },
    "converse": {
        "type": "object",
        "properties": {"tag": STRING, "steps": {"type": "integer", "minimum": 0, "maximum": 100}},
        "required": ["tag"],
    },
}
"""The schemas of the tools that take arguments."""

READ_ONLY = frozenset({*PLAIN, "echo", "json_schema_2020_12_tool"})


def tools(names: list[str]) -> list[Json]:
    """Their descriptions, in the order of `names`; a name describes its tool well enough here."""
    return [
        {
            "name": name,
            "description": name.replace("_", " "),
            "inputSchema": INPUTS.get(name, NO_ARGUMENTS),
            "annotations": {"readOnlyHint": name in READ_ONLY},
        }
        for name in names
    ]


# ── prompts ─────────────────────────────────────────────────────────────────────────────────────────────


DYNAMIC_TOOL = "test_dynamic_tool"
DYNAMIC_PROMPT: Json = {"name": "test_dynamic_prompt", "description": "There only now and then"}


class Lists:
    """The names of tools and the prompts, of which one each comes and goes with every change."""

    def __init__(self, tools: list[str], prompts: list[Json]) -> None:
        self._tools = [name for name in tools if name != DYNAMIC_TOOL]
        self._prompts = prompts
        self._more: set[str] = set()

    def change(self, what: str) -> None:
        """`what`: tools or prompts."""
        self._more ^= {what}

    @property
    def tools(self) -> list[str]:
        return [*self._tools, DYNAMIC_TOOL] if "tools" in self._more else self._tools

    @property
    def prompts(self) -> list[Json]:
        return [*self._prompts, DYNAMIC_PROMPT] if "prompts" in self._more else self._prompts


def argument(name: str) -> Json:
    return {"name": name, "description": name, "required": True}


PROMPTS: list[Json] = [
    {"name": "test_simple_prompt", "description": "Takes no arguments"},
    {
        "name": "test_prompt_with_arguments",
        "description": "Puts its arguments into its text",
        "arguments": [argument("arg1"), argument("arg2")],
    },
    {
        "name": "test_prompt_with_embedded_resource",
        "description": "Embeds a resource",
        "arguments": [argument("resourceUri")],
    },
    {"name": "test_prompt_with_image", "description": "Contains an image"},
]


def prompt(name: str, arguments: Mapping[str, str]) -> Json | None:
    """The result of prompts/get; None: there is no such prompt. KeyError names a missing argument."""
    match name:
        case "test_dynamic_prompt":
            content = [text("dynamic")]
        case "test_simple_prompt":
            content = [text("This is a simple prompt for testing.")]
        case "test_prompt_with_arguments":
            content = [text(f"Prompt with arguments: arg1='{arguments['arg1']}', arg2='{arguments['arg2']}'")]
        case "test_prompt_with_embedded_resource":
            content = [embedded(arguments["resourceUri"], "Embedded resource content for testing.")]
            content.append(text("Please process the embedded resource above."))
        case "test_prompt_with_image":
            content = [image(), text("Please analyze the image above.")]
        case _:
            return None
    return {"messages": [{"role": "user", "content": part} for part in content]}


def completion(ref: str, argument_name: str, value: str) -> Json:
    """Completes the first argument of the prompt that has some; nothing else has anything to choose from."""
    known = (
        ["paris", "park", "party"] if (ref, argument_name) == ("test_prompt_with_arguments", "arg1") else []
    )
    values = [word for word in known if word.startswith(value)]
    return {"completion": {"values": values, "total": len(values), "hasMore": False}}


# ── resources ───────────────────────────────────────────────────────────────────────────────────────────

WATCHED = "test://watched-resource"

RESOURCES: list[Json] = [
    {"uri": "test://static-text", "name": "static-text", "mimeType": "text/plain"},
    {"uri": "test://static-binary", "name": "static-binary", "mimeType": "image/png"},
    {"uri": WATCHED, "name": "watched-resource", "mimeType": "text/plain"},
]

TEMPLATES: list[Json] = [
    {"uriTemplate": "test://template/{id}/data", "name": "template", "mimeType": "application/json"}
]


def resource(uri: str, watched: str) -> Json | None:
    """The result of resources/read; None: there is none. `watched` is the text that can change."""
    found: Json
    if uri == "test://static-text":
        found = {"mimeType": "text/plain", "text": "This is the content of the static text resource."}
    elif uri == "test://static-binary":
        found = {"mimeType": "image/png", "blob": IMAGE}
    elif uri == WATCHED:
        found = {"mimeType": "text/plain", "text": watched}
    elif matched := re.fullmatch(r"test://template/([^/]+)/data", uri):
        data = f'{{"id":"{matched[1]}","templateTest":true,"data":"Data for ID: {matched[1]}"}}'
        found = {"mimeType": "application/json", "text": data}
    else:
        return None
    return {"contents": [{"uri": uri, **found}]}
