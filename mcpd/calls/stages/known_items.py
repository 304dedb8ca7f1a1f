"""The stage that refuses calls of what a server does not have, with a suggestion.

Only for calls through the control API, which people type. An MCP client knows the lists.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import attrs
from msgspec import Raw

from mcpd.calls.call import Call, Scope, Stage, StageWork
from mcpd.config.settings import Settings
from mcpd.model import advice
from mcpd.model.errors import InvalidArguments, McpdError, Problem, UnknownPrompt, UnknownTool, Unsupported
from mcpd.model.text import shorten
from mcpd.supervision.catalog import Catalog, Item, Listing, did_you_mean, is_tool_allowed
from mcpd.supervision.managed_server import ManagedServer
from mcpd.supervision.tool_overrides import original_name
from mcpd.wire import message as wire
from mcpd.wire.message import BadFrame

_FEATURE = {
    "prompts/get": "prompts",
    "resources/read": "resources",
    "completion/complete": "completions",
}


class KnownItemStageFactory:
    is_per_tool = True

    def is_enabled(self, scope: Scope, server: ManagedServer, method: str, settings: Settings) -> bool:
        return scope.is_control

    def make(self, scope: Scope, server: ManagedServer, method: str, name: str) -> KnownItemStage | None:
        return KnownItemStage(server, method)


@attrs.define(eq=False)
class KnownItemStage(Stage):
    """Raises UnknownTool, UnknownPrompt, Unsupported, and InvalidArguments if a prompt's required argument is
    missing."""

    server: ManagedServer
    method: str

    def before(self, call: Call) -> StageWork | None:
        try:
            self._check(call)
        except (UnknownTool, UnknownPrompt):
            feature = "prompts" if self.method == "prompts/get" else "tools"
            if not self.server.is_list_doubtful(feature):
                raise
            return partial(self._refresh_and_check, call, feature)
        return None

    async def _refresh_and_check(self, call: Call, feature: str) -> None:
        await self.server.refresh_list(feature)  # it may exist by now
        self._check(call)

    def _check(self, call: Call) -> None:
        server = self.server
        feature = _FEATURE.get(self.method)
        if feature is not None and server.upstream is not None and not server.upstream.has(feature):
            name = server.configured_name
            raise Unsupported(f"{name} does not support {feature}", server=name)
        if self.method == "tools/call":
            self._check_tool(call.tool)
        elif self.method == "prompts/get":
            self._check_prompt(wire.members(call.params))

    def _check_tool(self, name: str) -> None:
        server, catalog = self.server, self.server.catalog
        own = original_name(server.spec, name)
        if not own or not is_tool_allowed(server.spec, own):
            own = server.configured_name
            raise UnknownTool(f"{own}: the definition excludes {name!r}", server=own)
        if catalog is not None and catalog.tool(name) is None and _is_complete(catalog, catalog.tools):
            raise _unknown(server, name, catalog.tools, is_tool=True)

    def _check_prompt(self, params: Mapping[str, Raw]) -> None:
        server, catalog = self.server, self.server.catalog
        if catalog is None:
            return
        name = wire.string_or(params, "name")
        prompt = next((each for each in catalog.prompts if each.name == name), None)
        if prompt is not None:
            _check_prompt_arguments(server, prompt, params.get("arguments", Raw(b"{}")))
        elif _is_complete(catalog, catalog.prompts):
            raise _unknown(server, name, catalog.prompts, is_tool=False)


def _is_complete(catalog: Catalog, items: Listing) -> bool:
    """Return whether the list has all items. If it could not be fetched, the server decides."""
    return bool(items) or not catalog.warnings


def _unknown(server: ManagedServer, name: str, items: Listing, *, is_tool: bool) -> McpdError:
    own = server.configured_name
    kind, command = ("tool", "list-tools") if is_tool else ("prompt", "prompts")
    hint = did_you_mean(name, items) or advice.to_list(own, command, items)
    message = f"{own} has no {kind} {shorten(name, 80)!r}; {hint}"
    return (UnknownTool if is_tool else UnknownPrompt)(message, server=own)


def _check_prompt_arguments(server: ManagedServer, prompt: Item, arguments: Raw) -> None:
    given = wire.members(arguments)
    missing = [name for name in required_arguments(prompt) if name not in given]
    if missing:
        problems = [
            Problem("$.arguments", f'"{shorten(name, 80)}" is a required argument') for name in missing
        ]
        raise InvalidArguments(
            f"{prompt.name}@{server.configured_name} was not requested: arguments are missing: "
            + "; ".join(map(str, problems)),
            problems,
            server=server.configured_name,
        )


def required_arguments(prompt: Item) -> list[str]:
    """Return the names of the prompt's required arguments, as far as its declaration is readable."""
    try:
        declared = wire.mapping(Raw(prompt.raw)).get("arguments")
    except BadFrame:
        return []
    every = declared if isinstance(declared, list) else []
    return [
        argument["name"]
        for argument in every
        if isinstance(argument, dict)
        and argument.get("required") is True
        and isinstance(argument.get("name"), str)
    ]
