"""A port for other machines remembers little about the requests that it refuses."""

from __future__ import annotations

import logging
from typing import cast

import pytest

from mcpd.api.http.access_tokens import AccessTokens, TokenRefused
from mcpd.api.http.network_guard import NetworkGuard
from mcpd.api.http.parser import BadRequest, Head
from mcpd.config.http import Address, HttpSettings


class Refusing:
    def verify(self, token: bytes) -> None:
        raise TokenRefused(f"the algorithm {token.decode()} is not accepted")


def test_refused_tokens_are_logged_once_whatever_they_contain(caplog: pytest.LogCaptureFixture) -> None:
    """Anybody can send them, so that each would add a line and an entry otherwise."""
    settings = HttpSettings(listen=Address("0.0.0.0", 80), tls="balancer")
    guard = NetworkGuard(settings, "t" * 43, cast("AccessTokens", Refusing()), {})
    caplog.set_level(logging.WARNING)
    for number in range(50):
        headers = {b"host": b"localhost", b"authorization": b"Bearer %d" % number}
        with pytest.raises(BadRequest, match=f"algorithm {number} "):
            guard.admit(Head("POST", "/mcp", "", headers, frozenset(), True, True))
    assert len(caplog.records) == 1
    assert "algorithm 0 " in caplog.text
