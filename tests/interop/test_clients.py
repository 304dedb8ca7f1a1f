"""Third-party clients directly against the reference server, to show what they can do without mcpd."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop import peers
from tests.interop.clients.drivers import DRIVERS, Call, ClientFailed, Driver, Json, http, stdio
from tests.servers.reference.asking import TOOLS
from tests.servers.reference.content import DYNAMIC_TOOL

ROOT = Path(__file__).parent.parent.parent
SDK2 = (sys.executable, "-m", "tests.servers.reference.sdk2")
MODERN, LEGACY = "2026-07-28", "2025-11-25"
AT_2026 = ("python-sdk-2", "fastmcp-4", "typescript-sdk-2")
CAFE = "caf\N{LATIN SMALL LETTER E WITH ACUTE}"


@pytest.fixture(params=DRIVERS, ids=lambda driver: driver.name)
def driver(request: pytest.FixtureRequest) -> Driver:
    found: Driver = request.param
    if why := found.missing():
        pytest.skip(why)
    return found


@pytest.fixture(scope="module")
def by_url() -> Iterator[Json]:
    port = peers.free_port()
    with peers.listening([*SDK2, "--http", f"127.0.0.1:{port}"], port):
        yield http(f"http://127.0.0.1:{port}/mcp")


@pytest.mark.parametrize("way", ["stdio", "http"])
def test_every_client_lists_and_calls(driver: Driver, way: str, by_url: Json, tmp_path: Path) -> None:
    """Each client connects with a command and with a URL. `converse` uses everything that a call can cause,
    and each part contains the client's own name.
    """
    by_command = stdio(*SDK2, "--stdio", environ={"PYTHONPATH": str(ROOT)})
    calls: list[Call] = [("echo", {"text": CAFE})]
    if driver.library:
        calls += [("test_error_handling", {}), ("converse", {"tag": "alice", "steps": 2})]
    elif way == "http":
        calls += [("test_error_handling", {})]
    seen = driver.use(by_command if way == "stdio" else by_url, calls, tmp_path, "alice")
    assert {*seen.tools, DYNAMIC_TOOL} >= set(TOOLS)
    assert seen.texts[0] == CAFE
    assert seen.failed == [False, True, False][: len(calls)]
    if driver.library:
        assert seen.protocol == (MODERN if driver.name in AT_2026 else LEGACY)
        heard = json.loads(seen.texts[2])
        assert heard["tag"] == "alice"
        assert heard["elicited"]["content"] == {"name": "alice"}
        assert heard["sampled"]["content"]["text"] == "alice"
        assert heard["roots"]["roots"][0]["uri"] == "file:///alice"
        assert set(seen.asked) >= {"alice: what is your name?", "alice: who are you?"}
        assert set(seen.progress) >= {"alice 1", "alice 2"}


def test_a_client_that_fails_says_why(tmp_path: Path) -> None:
    """A driver must not count a missing result as success."""
    with pytest.raises(ClientFailed, match="ended with"):
        DRIVERS[1].use(stdio(sys.executable, "-c", "raise SystemExit(3)"), [], tmp_path)
