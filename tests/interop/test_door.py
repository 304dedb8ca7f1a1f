"""The clients of others at our door: by a URL and a token, each in the revision it speaks."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import Start
from tests.e2e.web import PORT, door
from tests.interop.clients.drivers import DRIVERS, Call, Driver, Json, http
from tests.servers.reference.asking import TOOLS
from tests.servers.reference.content import DYNAMIC_TOOL

ROOT = Path(__file__).parent.parent.parent
REFERENCE: Json = {
    "command": sys.executable,
    "args": ["-m", "tests.servers.reference.sdk2", "--stdio"],
    "env": {"PYTHONPATH": str(ROOT)},
}
CAFE = "caf\N{LATIN SMALL LETTER E WITH ACUTE}"


@pytest.mark.parametrize("driver", DRIVERS, ids=lambda driver: driver.name)
def test_every_client_works_through_mcpd_as_directly(driver: Driver, start: Start, tmp_path: Path) -> None:
    """Tests of the clients themselves: tests/interop/test_clients.py. What they can be asked, they are."""
    if why := driver.missing():
        pytest.skip(why)
    daemon = start({"reference": REFERENCE}, *PORT)
    daemon.wait_connected("reference")
    where = door(daemon)
    place = http(f"{where.base}/servers/reference/mcp", where.token)
    calls: list[Call] = [("echo", {"text": CAFE})]
    if driver.library:
        calls.append(("converse", {"tag": "alice", "steps": 2}))
    (tmp_path / "client").mkdir()
    seen = driver.use(place, calls, tmp_path / "client", "alice")
    assert set(seen.tools) >= set(TOOLS) - {DYNAMIC_TOOL}  # which is there after a change only
    assert seen.texts[0] == CAFE
    if driver.library:
        heard = json.loads(seen.texts[1])
        assert heard["elicited"]["content"] == {"name": "alice"}
        assert heard["sampled"]["content"]["text"] == "alice"
        assert set(seen.progress) >= {"alice 1", "alice 2"}
