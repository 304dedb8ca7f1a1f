"""HTTP for MCP clients: Streamable HTTP for both eras behind one address, and HTTP+SSE."""
