"""A small MCP server for demos and tests: every revision, stdio or HTTP, standard library only.

`python -m mcpd.testserver` starts it in about 40 ms. It shares no code with the daemon, so it can be used
to verify the daemon independently.
"""
