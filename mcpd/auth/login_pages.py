"""The texts of the pages that a person sees in the browser while logging in, apart from errors."""

from __future__ import annotations

from collections.abc import Collection
from urllib.parse import urlsplit

from mcpd.auth.redirect_listener import Page
from mcpd.model.oauth_settings import DEFAULT_ACCOUNT


def start_page(server: str, account: str, issuer: str, scopes: Collection[str], url: str) -> Page:
    """Return the page that names the server and the scopes, and links to the authorization server."""
    which = "" if account == DEFAULT_ACCOUNT else f" (account {account})"
    requested = f" It requests the scopes {' '.join(scopes)}." if scopes else ""
    text = (
        f"The MCP server {server}{which} requires a login at {issuer}. mcpd keeps the login, and all "
        f"programs on this machine that use {server} through mcpd share it.{requested}"
    )
    return Page(200, f"Log in to {server}", text, url, f"Continue to {urlsplit(url).netloc}")


def done_page(server: str) -> Page:
    return Page(200, "Logged in", f"mcpd is logged in to {server}. You can close this page.")
