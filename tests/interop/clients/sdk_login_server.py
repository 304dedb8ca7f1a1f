"""An MCP server with the authorization server of the official Python SDK: `python sdk_login_server.py PORT`.

The SDK checks every request, and this file only stores what it issues. It rotates refresh tokens, and revokes
the access token together with its refresh token. `/test/expire` ends all access tokens, and `/test/stats`
returns what was requested so far.
"""

from __future__ import annotations

import secrets
import sys
import time

from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizationParams,
    OAuthAuthorizationServerProvider,
    RefreshToken,
    construct_redirect_uri,
)
from mcp.server.auth.settings import AuthSettings, ClientRegistrationOptions, RevocationOptions
from mcp.server.mcpserver import MCPServer
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from pydantic import AnyHttpUrl
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

LIFETIME = 3600


class Provider(OAuthAuthorizationServerProvider[AuthorizationCode, RefreshToken, AccessToken]):
    """Everybody is logged in, and consents to everything."""

    def __init__(self) -> None:
        self.clients: dict[str, OAuthClientInformationFull] = {}
        self.codes: dict[str, AuthorizationCode] = {}
        self.refresh_tokens: dict[str, tuple[RefreshToken, str]] = {}
        """Each with the access token that was issued together with it."""
        self.access_tokens: dict[str, AccessToken] = {}
        self.renewals = self.revocations = self.calls = 0

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        return self.clients.get(client_id)

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        assert client_info.client_id is not None
        self.clients[client_info.client_id] = client_info

    async def authorize(self, client: OAuthClientInformationFull, params: AuthorizationParams) -> str:
        assert client.client_id is not None
        code = AuthorizationCode(
            code=secrets.token_urlsafe(32),
            scopes=params.scopes or [],
            expires_at=time.time() + LIFETIME,
            client_id=client.client_id,
            code_challenge=params.code_challenge,
            redirect_uri=params.redirect_uri,
            redirect_uri_provided_explicitly=params.redirect_uri_provided_explicitly,
            resource=params.resource,
        )
        self.codes[code.code] = code
        return construct_redirect_uri(str(params.redirect_uri), code=code.code, state=params.state)

    async def load_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: str
    ) -> AuthorizationCode | None:
        return self.codes.get(authorization_code)

    async def exchange_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: AuthorizationCode
    ) -> OAuthToken:
        del self.codes[authorization_code.code]
        return self._issue(
            authorization_code.client_id, authorization_code.scopes, authorization_code.resource
        )

    async def load_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: str
    ) -> RefreshToken | None:
        known = self.refresh_tokens.get(refresh_token)
        return None if known is None else known[0]

    async def exchange_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: RefreshToken, scopes: list[str]
    ) -> OAuthToken:
        self.renewals += 1
        self._end(refresh_token)
        return self._issue(refresh_token.client_id, scopes, refresh_token.resource)

    async def load_access_token(self, token: str) -> AccessToken | None:
        return self.access_tokens.get(token)

    async def revoke_token(self, token: AccessToken | RefreshToken) -> None:
        self.revocations += 1
        assert isinstance(token, RefreshToken)
        self._end(token)

    def _issue(self, client_id: str, scopes: list[str], resource: str | None) -> OAuthToken:
        access = AccessToken(
            token=secrets.token_urlsafe(32),
            client_id=client_id,
            scopes=scopes,
            expires_at=int(time.time()) + LIFETIME,
            resource=resource,
        )
        refresh = RefreshToken(
            token=secrets.token_urlsafe(32), client_id=client_id, scopes=scopes, resource=resource
        )
        self.access_tokens[access.token] = access
        self.refresh_tokens[refresh.token] = (refresh, access.token)
        return OAuthToken(
            access_token=access.token,
            token_type="Bearer",
            expires_in=LIFETIME,
            refresh_token=refresh.token,
        )

    def _end(self, token: RefreshToken) -> None:
        _, access = self.refresh_tokens.pop(token.token)
        del self.access_tokens[access]


def main(port: int) -> None:
    provider = Provider()
    origin = f"http://127.0.0.1:{port}"
    auth = AuthSettings(
        issuer_url=AnyHttpUrl(origin),
        resource_server_url=AnyHttpUrl(f"{origin}/mcp"),
        client_registration_options=ClientRegistrationOptions(enabled=True),
        revocation_options=RevocationOptions(enabled=True),
        validate_token_resource=True,
    )
    server = MCPServer("sdk", auth_server_provider=provider, auth=auth)

    @server.tool()
    def echo(message: str) -> str:
        provider.calls += 1
        return message

    async def expire(_: Request) -> Response:
        for token in provider.access_tokens.values():
            token.expires_at = 1
        return JSONResponse({})

    async def stats(_: Request) -> Response:
        return JSONResponse(
            {
                "clients": len(provider.clients),
                "renewals": provider.renewals,
                "revocations": provider.revocations,
                "calls": provider.calls,
            }
        )

    server.custom_route("/test/expire", methods=["POST"])(expire)
    server.custom_route("/test/stats", methods=["GET"])(stats)
    server.run("streamable-http", host="127.0.0.1", port=port)


if __name__ == "__main__":
    main(int(sys.argv[1]))
