"""Clients of a definition, and several accounts, with a real daemon and mcpctl."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from urllib.parse import parse_qsl

from mcpd.auth.dpop import new_key
from tests.e2e.conftest import Start
from tests.e2e.test_login import logged_in, mcpctl, needs_login, served


def test_a_key_signs_the_login_its_renewal_and_its_revocation(start: Start, tmp_path: Path) -> None:
    """`private_key_jwt` (RFC 7523): every request has an assertion of its own for the issuer."""
    key = tmp_path / "key.pem"
    key.write_text(new_key())
    with served() as server:
        assert server.metadata is not None
        server.metadata["token_endpoint_auth_methods_supported"] = ["private_key_jwt"]
        server.clients["mine"] = {"redirect_uris": ["http://127.0.0.1:41877/callback"]}
        oauth = {
            "clientId": "mine",
            "privateKey": f"${{file:{key}}}",
            "redirectUri": "http://127.0.0.1:41877/callback",
        }
        daemon = start({"remote": {"url": server.url, "oauth": oauth}})
        needs_login(daemon)
        logged_in(daemon)
        code, text = mcpctl(daemon, "auth", "refresh", "remote")
        assert code == 0, text
        code, text = mcpctl(daemon, "logout", "remote")
        assert "has revoked the tokens" in text
        revocation = dict(parse_qsl(server.asked("/revoke")[0].body.decode()))
        seen = set()
        for form in (*server.token_requests, revocation):
            claims = json.loads(base64.urlsafe_b64decode(form["client_assertion"].split(".")[1] + "=="))
            assert (claims["iss"], claims["sub"], claims["aud"]) == ("mine", "mine", server.origin)
            seen.add(claims["jti"])
        assert len(seen) == 3
