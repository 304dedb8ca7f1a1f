"""Fixtures for the tests of the HTTP transports."""

from __future__ import annotations

import pytest

from mcpd.transports.http_client import client_factory


@pytest.fixture(params=["loopback", "network"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a test twice: on mcpd's own connections, and as if the server on loopback were on a network."""
    if request.param == "network":
        monkeypatch.setattr(client_factory, "is_loopback", lambda host: False)
    return str(request.param)
