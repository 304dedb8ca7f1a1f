"""HTTP requests without MCP knowledge: httpx for networks, own connections for loopback, and limits."""
