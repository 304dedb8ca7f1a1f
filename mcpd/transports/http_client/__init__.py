"""An HTTP/1.1 client that knows nothing of MCP: warm connections, proxies, TLS, redirects, bounded bodies."""
