"""The stage that sends a call of a tool that its definition changes (`tools`) in the server's own form."""

from __future__ import annotations

import attrs
import msgspec
from msgspec import Raw

from mcpd.calls.call import Call, Scope, Stage, read_unambiguous
from mcpd.config.settings import Settings
from mcpd.model.server_spec import ToolOverride
from mcpd.supervision.managed_server import ManagedServer
from mcpd.wire import message as wire


class ToolOverrideStageFactory:
    is_per_tool = True

    def is_enabled(self, scope: Scope, server: ManagedServer, method: str, settings: Settings) -> bool:
        return bool(server.spec.tool_overrides) and method == "tools/call"

    def make(self, scope: Scope, server: ManagedServer, method: str, name: str) -> ToolOverrideStage | None:
        item = None if server.catalog is None else server.catalog.tool(name)
        if item is None or item.original is None:
            return None
        override = server.spec.tool_overrides.get(item.original.name)
        return None if override is None else ToolOverrideStage(item.original.name, override)


@attrs.define(eq=False)
class ToolOverrideStage(Stage):
    """Uses the server's name, leaves out hidden arguments, and adds those with a fixed value."""

    own_name: str
    override: ToolOverride

    def before(self, call: Call) -> None:
        members = read_unambiguous(call.params)
        members["name"] = Raw(msgspec.json.encode(self.own_name))
        if self.override.arguments:
            given = wire.members(members.get("arguments", Raw(b"{}")))
            for name, argument in self.override.arguments.items():
                given.pop(name, None)
                if argument.value is not None:
                    given[name] = Raw(msgspec.json.encode(argument.value))
            members["arguments"] = Raw(wire.join_members(given))
        call.params = wire.join_members(members)
