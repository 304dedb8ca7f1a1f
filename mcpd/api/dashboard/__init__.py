"""The dashboard: a page in the browser, for whoever `mcpctl ui` has let in."""
