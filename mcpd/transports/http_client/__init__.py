"""An HTTP/1.1 client without MCP knowledge: keep-alive connections, proxies, TLS, redirects, bodies."""
