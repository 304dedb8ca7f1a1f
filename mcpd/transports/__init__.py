"""Transports to MCP servers: pipes of child processes, HTTP, WebSocket."""

import sys

# httpx imports its own command line if click, rich and pygments are installed, as they are here:
# 5 MB, and half of its import time.
sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]  # marks the module as missing
