"""An HTTP/1.1 server that knows nothing of MCP: bytes → requests, responses and streams → bytes."""
