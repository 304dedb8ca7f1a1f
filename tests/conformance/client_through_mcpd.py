"""The Python SDK's own client for the conformance suite, with an mcpd between it and the suite's server.

MCP_CONFORMANCE_SCENARIO=tools_call python -m tests.conformance.client_through_mcpd http://localhost:1234/mcp
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.conformance.references import SDK_CLIENT
from tests.conformance.ways import mcpd


def main(url: str) -> int:
    """Run the client, and return its exit status."""
    with (
        tempfile.TemporaryDirectory() as home,
        mcpd(Path(home) / "mcpd", {"mock": {"url": url}}) as (_, origin),
    ):
        return subprocess.run([sys.executable, str(SDK_CLIENT), f"{origin}/servers/mock/mcp"]).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
