"""The stage that sends a call again in a new session, if the server has forgotten the old one.

Such a server has refused to execute the call.
"""

from __future__ import annotations

import trio

from mcpd.calls.call import Call, Scope, Stage, Work
from mcpd.config.settings import Settings
from mcpd.model.errors import LinkLost, McpdError
from mcpd.model.server_spec import RemoteSpec
from mcpd.supervision.managed_server import ManagedServer


class LostSessionStageFactory:
    is_per_tool = False

    def is_enabled(self, scope: Scope, server: ManagedServer, method: str, settings: Settings) -> bool:
        return isinstance(server.spec, RemoteSpec)

    def make(self, scope: Scope, server: ManagedServer, method: str, name: str) -> LostSessionStage:
        return LostSessionStage()


class LostSessionStage(Stage):
    """Sends a call again once. The engine waits for the new connection."""

    def failed(self, call: Call, error: McpdError) -> Work | None:
        if not isinstance(error, LinkLost) or not error.is_session_refused or call.was_retried or call.rounds:
            return None
        call.was_retried = True
        return trio.lowlevel.checkpoint
