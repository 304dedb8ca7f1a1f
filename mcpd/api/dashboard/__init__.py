"""The dashboard: a web page for a browser that was logged in with `mcpctl ui`."""
