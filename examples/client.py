"""Call a tool through the control API: connect, write a line, and read a line.

The tool is one of mcpd's test server. To add this server, run
`mcpctl add test -- python3 /path/to/examples/testserver`.
"""

import json
import os
import socket

daemon = socket.socket(socket.AF_UNIX)
daemon.connect(os.environ.get("MCPD_SOCKET") or os.environ["XDG_RUNTIME_DIR"] + "/mcpd/mcpd.sock")
lines = daemon.makefile("rw")
call = {"server": "test", "tool": "add", "arguments": {"a": 1, "b": 2}}
print(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "mcpd/call", "params": call}), file=lines, flush=True)
print(json.loads(lines.readline()))
