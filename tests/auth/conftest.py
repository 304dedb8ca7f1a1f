"""Fixtures of the tests of logins."""

from __future__ import annotations

import pytest

from mcpd.auth import redirect_listener
from tests.interop.peers import free_port


@pytest.fixture(autouse=True)
def redirect_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each test redirect ports of its own, so that a second login gets the port of the first one."""
    monkeypatch.setattr(redirect_listener, "PORTS", (free_port(), free_port()))
