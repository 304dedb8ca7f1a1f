"""The servers that the official suite tests directly and through mcpd."""

from __future__ import annotations

import sys
from pathlib import Path

import attrs

from tests.conformance.suite import REVISIONS, ROOT

_SDK1 = ROOT / ".venv-mcp1" / "bin" / "python"
_EVERYTHING = ROOT / ".everything"
SDK_CLIENT = _EVERYTHING / ".venv" / "client.py"
"""The client with which the Python SDK's own CI runs the suite."""


@attrs.frozen
class Reference:
    """A reference server, and the revisions that it supports."""

    name: str
    python: Path
    revisions: tuple[str, ...]
    imports: Path = ROOT
    """The directory that it is imported from."""

    def stdio(self) -> list[str]:
        return [*self._module, "--stdio"]

    def http(self, port: int) -> list[str]:
        return [*self._module, "--http", f"127.0.0.1:{port}"]

    @property
    def _module(self) -> tuple[str, ...]:
        return (str(self.python), "-m", f"tests.servers.reference.{self.name}")


class Everything(Reference):
    """The everything-server of a generation of the Python SDK. That of the second generation speaks both
    eras, and asks in the way of either.
    """

    def stdio(self) -> list[str]:
        return [str(self.python), "-c", "from mcp_everything_server.server import mcp; mcp.run()"]

    def http(self, port: int) -> list[str]:
        return [str(self.python), "-m", "mcp_everything_server", "--port", str(port)]


REFERENCES = (
    Reference("sdk2", Path(sys.executable), REVISIONS),
    Reference("sdk1", _SDK1, REVISIONS[:-1]),
    Everything("everything2", Path(sys.executable), REVISIONS, _EVERYTHING / ".venv"),
    Everything("everything1", _SDK1, REVISIONS[:-1], _EVERYTHING / ".venv-mcp1"),
)
OTHERS = frozenset({"everything1", "everything2"})
"""The servers that we have not written. They may fail the suite themselves, but not through mcpd."""
