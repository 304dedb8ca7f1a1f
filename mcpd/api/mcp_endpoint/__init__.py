"""Streamable HTTP for MCP clients of every revision since 2025-03-26: both eras behind one address."""
