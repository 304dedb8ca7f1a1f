"""A small MCP server to try things with: every revision, over stdio or HTTP, standard library only.

`python -m mcpd.testserver` starts it. It imports nothing of the daemon, so that it can serve as an
independent witness, and starts in about 40 ms.
"""
