"""The daemon as mcpctl sees it: the connection to its socket, and starting and stopping it."""
