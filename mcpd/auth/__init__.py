"""Logging in to remote MCP servers with OAuth 2.1."""
