"""The tool that mcpd lists for a server that has never been connected because a person has to log in.

Without it, the server lists nothing, so no client calls anything, and only calls are answered with a login
link. mcpd answers the calls of this tool, once somebody has logged in, and sends nothing to the server.
"""

from __future__ import annotations

from functools import lru_cache

import msgspec

from mcpd.calls.call import Answer, Call, Scope
from mcpd.config.settings import Settings
from mcpd.model.server_spec import RemoteSpec, ServerSpec
from mcpd.model.status import ServerState
from mcpd.supervision.catalog import Catalog, Item, is_tool_allowed
from mcpd.supervision.managed_server import ManagedServer

LOGIN_TOOL = "mcpd_log_in"


def may_offer_login(spec: ServerSpec) -> bool:
    """Return whether a person can log in to the server, and its definition does not exclude the tool."""
    return (
        isinstance(spec, RemoteSpec)
        and spec.may_log_in
        and spec.oauth.grant == "code"
        and is_tool_allowed(spec, LOGIN_TOOL)
    )


def login_catalog(server: ManagedServer) -> Catalog | None:
    """Return the lists to show while a login is needed and nothing of the server is known; None otherwise.

    It is the same object each time, because callers compare lists by identity.
    """
    if server.catalog is not None or server.state is not ServerState.NEEDS_AUTH:
        return None
    return _catalog(server.spec.name) if may_offer_login(server.spec) else None


@lru_cache(maxsize=1000)
def _catalog(server: str) -> Catalog:
    entry = {
        "name": LOGIN_TOOL,
        "description": f"The tools of {server} are available only after a login. If the user wants to use "
        f"{server}, call this tool: it shows the user a link to log in, or says how to log in otherwise.",
        "inputSchema": {"type": "object", "properties": {}},
        "annotations": {"readOnlyHint": False, "destructiveHint": False, "openWorldHint": True},
    }
    return Catalog(tools=(Item(LOGIN_TOOL, msgspec.json.encode(entry)),))


class LoginToolStageFactory:
    def is_enabled(self, scope: Scope, server: ManagedServer, method: str, settings: Settings) -> bool:
        return method == "tools/call" and not scope.is_control and may_offer_login(server.spec)

    def make(self, scope: Scope, server: ManagedServer, method: str, name: str) -> LoginToolStage | None:
        return LoginToolStage(server) if name == LOGIN_TOOL else None


class LoginToolStage(msgspec.Struct, eq=False):
    """Answers the calls of the tool, which get here when the server is connected."""

    server: ManagedServer

    def before(self, call: Call) -> Answer | None:
        catalog, upstream = self.server.catalog, self.server.upstream
        if upstream is None or (catalog is not None and catalog.tool(LOGIN_TOOL) is not None):
            return None
        name = (self.server.original or self.server).spec.name
        text = f"{name} is connected. Its tools are listed now."
        result: dict[str, object] = {"content": [{"type": "text", "text": text}]}
        if upstream.era == "modern":
            result["resultType"] = "complete"
        return Answer(msgspec.json.encode(result), is_cached=False)
