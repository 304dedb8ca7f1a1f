"""mcpd: one daemon that owns the connection to every MCP server a person uses."""

__version__ = "0.1.0"
