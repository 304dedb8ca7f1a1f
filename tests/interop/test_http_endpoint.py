"""Third-party clients at mcpd's HTTP endpoint, with a URL and a token, each in its own revision."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import Start
from tests.e2e.web import PORT, http_endpoint
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


SSE_CLIENTS = [driver for driver in DRIVERS if driver.name in ("python-sdk-1", "typescript-sdk-1")]
WAYS = [
    *(pytest.param(driver, "mcp", id=driver.name) for driver in DRIVERS),
    *(pytest.param(driver, "sse", id=f"{driver.name}-sse") for driver in SSE_CLIENTS),
]


@pytest.mark.parametrize(("driver", "endpoint"), WAYS)
def test_every_client_works_the_same_through_mcpd(
    driver: Driver, endpoint: str, start: Start, tmp_path: Path
) -> None:
    """The tests of the clients themselves are in tests/interop/test_clients.py."""
    if why := driver.missing():
        pytest.skip(why)
    daemon = start({"reference": REFERENCE}, *PORT)
    daemon.wait_connected("reference")
    where = http_endpoint(daemon)
    place = http(f"{where.base}/servers/reference/{endpoint}", where.token)
    calls: list[Call] = [("echo", {"text": CAFE})]
    if driver.library:
        calls.append(("converse", {"tag": "alice", "steps": 2}))
    (tmp_path / "client").mkdir()
    seen = driver.use(place, calls, tmp_path / "client", "alice")
    assert set(seen.tools) >= set(TOOLS) - {DYNAMIC_TOOL}  # present only after a change
    assert seen.texts[0] == CAFE
    if driver.library:
        heard = json.loads(seen.texts[1])
        assert heard["elicited"]["content"] == {"name": "alice"}
        assert heard["sampled"]["content"]["text"] == "alice"
        assert set(seen.progress) >= {"alice 1", "alice 2"}
