"""One name for one thing in JSON: `server` and `state`, beside the former names."""

from __future__ import annotations

import attrs

from mcpd.model.codec import unstructure
from mcpd.model.status import ServerState, ServerStatus


def test_status_has_the_new_names_and_the_former_ones() -> None:
    """Also in a copy with another state."""
    first = ServerStatus(name="git", status=ServerState.PENDING, since="", transport="stdio")
    for status in (first, attrs.evolve(first, name="hub", status=ServerState.FAILED)):
        written = unstructure(status)
        assert isinstance(written, dict)
        assert written["server"] == written["name"] == status.name
        assert written["state"] == written["status"] == status.status.value
