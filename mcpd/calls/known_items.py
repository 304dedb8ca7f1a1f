"""The stage that refuses calls of what a server does not have, with a suggestion.

Only for calls through the control API, which people type. An MCP client knows the lists.
"""

from __future__ import annotations

from functools import partial

import msgspec
from msgspec import Raw

from mcpd.calls.call import Call, Scope, StageWork
from mcpd.config.settings import Settings
from mcpd.model import advice
from mcpd.model.errors import InvalidArguments, McpdError, Problem, UnknownPrompt, UnknownTool, Unsupported
from mcpd.model.text import shorten
from mcpd.supervision.catalog import Item, Listing, did_you_mean, is_tool_allowed
from mcpd.supervision.managed_server import ManagedServer
from mcpd.wire import message as wire
from mcpd.wire.message import BadFrame

_FEATURE = {
    "prompts/get": "prompts",
    "resources/read": "resources",
    "completion/complete": "completions",
}


class KnownItemStageFactory:
    def is_enabled(self, scope: Scope, server: ManagedServer, method: str, settings: Settings) -> bool:
        return scope.is_control

    def make(self, scope: Scope, server: ManagedServer, method: str, name: str) -> KnownItemStage | None:
        return KnownItemStage(server, method)


class KnownItemStage(msgspec.Struct, eq=False):
    """Raises UnknownTool, UnknownPrompt, Unsupported, and InvalidArguments if a prompt's required argument is
    missing."""

    server: ManagedServer
    method: str

    def before(self, call: Call) -> StageWork | None:
        try:
            self._check(call)
        except (UnknownTool, UnknownPrompt):
            if not self.server.lists_expired:
                raise
            return partial(self._refresh_and_check, call)
        return None

    async def _refresh_and_check(self, call: Call) -> None:
        await self.server.refresh_expired_lists()  # it may exist by now
        self._check(call)

    def _check(self, call: Call) -> None:
        server, catalog = self.server, self.server.catalog
        feature = _FEATURE.get(self.method)
        if feature is not None and server.upstream is not None and not server.upstream.has(feature):
            raise Unsupported(f"{server.spec.name} does not support {feature}", server=server.spec.name)
        if self.method not in ("tools/call", "prompts/get"):
            return
        members = wire.members(call.params)
        name = wire.string_or(members, "name")
        is_tool = self.method == "tools/call"
        if is_tool and not is_tool_allowed(server.spec, name):
            message = f"{server.spec.name}: the definition excludes {name!r}"
            raise UnknownTool(message, server=server.spec.name)
        if catalog is None:
            return
        items = catalog.tools if is_tool else catalog.prompts
        item = catalog.tool(name) if is_tool else next((each for each in items if each.name == name), None)
        if item is None:
            if items or not catalog.warnings:  # otherwise the list could not be fetched: the server decides
                raise _unknown(server, name, items, is_tool=is_tool)
        elif not is_tool:
            _check_prompt_arguments(server, item, members.get("arguments", Raw(b"{}")))


def _unknown(server: ManagedServer, name: str, items: Listing, *, is_tool: bool) -> McpdError:
    own = server.spec.name
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
            f"{prompt.name}@{server.spec.name} was not requested: arguments are missing: "
            + "; ".join(map(str, problems)),
            problems,
            server=server.spec.name,
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
