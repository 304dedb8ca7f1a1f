"""Files in which other programs keep logins, as these programs write them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path

EXPIRES = 1_900_000_000
"""Seconds since the epoch."""


def _write(path: Path, document: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=2))
    return path


def _sdk_tokens(access: str, refresh: str) -> dict[str, object]:
    return {"access_token": access, "token_type": "Bearer", "expires_in": 3600, "refresh_token": refresh}


def mcp_remote(home: Path, url: str, client: str, access: str, refresh: str) -> Path:
    """Version 0.15.1, as it wrote them during a login."""
    directory = home / ".mcp-auth" / "mcp-remote-v1"
    name = hashlib.md5(url.encode()).hexdigest()
    info = {
        "redirect_uris": ["http://localhost:41999/oauth/callback"],
        "token_endpoint_auth_method": "none",
        "client_name": "MCP CLI Proxy",
        "client_id": client,
        "issuer": "https://not-used.example",
    }
    _write(directory / f"{name}_client_info.json", info)
    more = {"expires_at": EXPIRES * 1000, "requested_scope": "openid email profile"}
    return _write(directory / f"{name}_tokens.json", {**_sdk_tokens(access, refresh), **more})


def claude_code(home: Path, url: str, client: str, access: str, refresh: str) -> Path:
    """As in anthropics/claude-code#28262; the other member is its own login."""
    entry = {
        "serverName": "remote",
        "serverUrl": url,
        "clientId": client,
        "accessToken": access,
        "expiresAt": EXPIRES * 1000,
        "refreshToken": refresh,
        "scope": "",
    }
    document = {"claudeAiOauth": {"accessToken": "its-own"}, "mcpOAuth": {"remote|0123456789abcdef": entry}}
    return _write(home / ".claude" / ".credentials.json", document)


def mcporter(home: Path, url: str, client: str, access: str, refresh: str) -> Path:
    """Version 0.12.3."""
    entry = {
        "serverName": "remote",
        "serverUrl": url,
        "updatedAt": "2026-11-23T03:28:39.577Z",
        "clientInfo": {"redirect_uris": ["http://127.0.0.1:40507/callback"], "client_id": client},
        "tokens": _sdk_tokens(access, refresh),
    }
    document = {"version": 1, "entries": {"remote|a2436421e6489e71": entry}}
    return _write(home / ".mcporter" / "credentials.json", document)


def codex(home: Path, url: str, client: str, access: str, refresh: str) -> Path:
    """As `FallbackTokenEntry` in codex-rs/rmcp-client/src/oauth.rs."""
    entry = {
        "server_name": "remote",
        "server_url": url,
        "client_id": client,
        "access_token": access,
        "expires_at": EXPIRES * 1000,
        "refresh_token": refresh,
        "scopes": ["read"],
    }
    return _write(home / ".codex" / ".credentials.json", {"remote|fedcba9876543210": entry})


def opencode(home: Path, url: str, client: str, access: str, refresh: str) -> Path:
    """As packages/opencode/src/mcp/auth.ts."""
    entry = {
        "tokens": {"accessToken": access, "refreshToken": refresh, "expiresAt": EXPIRES, "scope": "read"},
        "clientInfo": {"clientId": client, "clientIdIssuedAt": 1_700_000_000},
        "serverUrl": url,
    }
    return _write(home / ".local" / "share" / "opencode" / "mcp-auth.json", {"remote": entry})


def gemini_cli(home: Path, url: str, client: str, access: str, refresh: str) -> Path:
    """As packages/core/src/mcp/oauth-token-storage.ts."""
    token = {
        "accessToken": access,
        "refreshToken": refresh,
        "expiresAt": EXPIRES * 1000,
        "tokenType": "Bearer",
        "scope": "read",
    }
    entry = {
        "serverName": "remote",
        "token": token,
        "clientId": client,
        "tokenUrl": "https://not-used.example/token",
        "mcpServerUrl": url,
        "updatedAt": 1_795_000_000_000,
    }
    return _write(home / ".gemini" / "mcp-oauth-tokens.json", [entry])


FILES: Mapping[str, Callable[[Path, str, str, str, str], Path]] = {
    "mcp-remote": mcp_remote,
    "claude-code": claude_code,
    "mcporter": mcporter,
    "codex": codex,
    "opencode": opencode,
    "gemini-cli": gemini_cli,
}
