"""HTTP/1.1 for clients: a server independent of MCP, who is admitted, and what each path serves."""
