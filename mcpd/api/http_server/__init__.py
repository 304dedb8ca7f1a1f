"""An HTTP/1.1 server, independent of MCP: request parsing, responses and streams."""
