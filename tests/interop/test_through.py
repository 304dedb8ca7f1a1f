"""Third-party clients through mcpd: each works as it does directly, and many do not disturb each other."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from tests.e2e import harness
from tests.gateway.mcp_client import MODERN as REVISION
from tests.gateway.mcp_client import VERSIONS, McpClient
from tests.interop import sharing
from tests.interop.attached import Attached
from tests.interop.clients.drivers import DRIVERS, Call, Driver, Json, http, stdio
from tests.interop.peers import ROOT, SDK2
from tests.interop.sharing import SDK1, library, memory
from tests.servers.reference.asking import TOOLS
from tests.servers.reference.content import DYNAMIC_TOOL

LEGACY, MODERN = "sdk1", "sdk2"
CAFE = "caf\N{LATIN SMALL LETTER E WITH ACUTE}"
GROUP = {
    "alice": "python-sdk-1",
    "bob": "python-sdk-2",
    "carol": "typescript-sdk-1",
    "dave": "typescript-sdk-2",
}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[harness.Daemon]:
    """Run one daemon with a server of each generation, for all clients."""
    root = {"PYTHONPATH": str(ROOT)}
    servers = {
        LEGACY: stdio(*SDK1, "--stdio", environ=root),
        MODERN: stdio(*SDK2, "--stdio", environ=root),
    }
    home = tmp_path_factory.mktemp("mcpd")
    with harness.running(home, servers, "--http", "127.0.0.1:0") as running:
        running.wait_connected(*servers)
        yield running


def by_bridge(daemon: harness.Daemon, server: str) -> Json:
    """Return the command `mcpctl bridge`, as an editor starts it."""
    ours = {name: text for name, text in daemon.environ.items() if name.startswith("XDG_")}
    command = (sys.executable, "-m", "ctl", "bridge", "--server", server)
    return stdio(*command, environ={**ours, "PYTHONPATH": str(ROOT)})


def by_url(daemon: harness.Daemon, server: str) -> Json:
    """Return the endpoint of one server, with the token of the daemon."""
    with daemon.client() as client:
        endpoint = client.request("mcpd/status")["daemon"]["http"]
    token = Path(endpoint["token_file"]).read_text().strip()
    return http(f"{endpoint['url'].removesuffix('/mcp')}/servers/{server}/mcp", token)


@pytest.mark.parametrize("driver", DRIVERS, ids=lambda driver: driver.name)
def test_every_client_lists_and_calls(daemon: harness.Daemon, driver: Driver, tmp_path: Path) -> None:
    """Through the bridge; `test_http_endpoint` compares the clients over HTTP."""
    if why := driver.missing():
        pytest.skip(why)
    calls: list[Call] = [("echo", {"text": CAFE})]
    if driver.library:
        calls += [("test_error_handling", {})]
    seen = driver.use(by_bridge(daemon, LEGACY), calls, tmp_path, "alice")
    assert {*seen.tools, DYNAMIC_TOOL} >= set(TOOLS)
    assert seen.texts[0] == CAFE
    assert seen.failed == [False, True][: len(calls)]


@pytest.mark.parametrize("driver", DRIVERS, ids=lambda driver: driver.name)
def test_every_client_finds_and_calls_tools(daemon: harness.Daemon, driver: Driver, tmp_path: Path) -> None:
    """On the search surface, where an argument is an object."""
    if why := driver.missing():
        pytest.skip(why)
    place = by_url(daemon, LEGACY)
    place["url"] = place["url"].replace(f"/servers/{LEGACY}/mcp", "/mcp?surface=search")
    calls: list[Call] = [
        ("find_tools", {"query": "echo a text"}),
        ("call_tool", {"name": f"{LEGACY}__echo", "arguments": {"text": CAFE}}),
    ]
    seen = driver.use(place, calls, tmp_path, "alice")
    assert {"find_tools", "describe_tool", "call_tool"} <= {*seen.tools}
    assert not [tool for tool in seen.tools if "__" in tool]
    assert f"{LEGACY}__echo(" in seen.texts[0]
    assert seen.texts[1] == CAFE


@pytest.mark.parametrize("server", [LEGACY, MODERN])
def test_concurrent_conversations_are_not_mixed_up(
    daemon: harness.Daemon, server: str, tmp_path: Path
) -> None:
    """Four clients, of two generations and over two transports, share one process; each gets its own
    messages.
    """
    ways = [by_bridge, by_url, by_url, by_bridge]
    users = {
        name: (library(client), way(daemon, server))
        for (name, client), way in zip(GROUP.items(), ways, strict=True)
    }
    assert sharing.conversations(users, tmp_path) == []
    assert daemon.status(server)["restarts"] == 0


KINDS = {"legacy": ["2025-11-25", "2025-06-18"], "modern": [REVISION], "mixed": [REVISION, "2025-11-25"]}


@pytest.mark.parametrize("kind", KINDS)
def test_eight_concurrent_clients_of_one_process_get_their_own_messages(
    daemon: harness.Daemon, kind: str, tmp_path: Path
) -> None:
    """Each has several concurrent conversations with a server that knows only `initialize` and cannot say
    which call causes its requests. A modern client gets the requests in rounds.
    """
    versions = KINDS[kind]
    users = {
        f"client-{number}": (Attached(daemon, versions[number % len(versions)]), {"name": LEGACY})
        for number in range(8)
    }
    assert sharing.conversations(users, tmp_path) == []
    assert len(processes(daemon)) == 1
    assert daemon.status(LEGACY)["restarts"] == 0


def processes(daemon: harness.Daemon) -> list[int]:
    """Return the processes of the shared server."""
    found = []
    for child in harness.children(daemon.process.pid):
        with suppress(OSError):  # a process that has just ended
            if SDK1[-1].encode() in Path(f"/proc/{child}/cmdline").read_bytes():
                found.append(child)
    return found


def test_writes_of_four_clients_to_an_unknown_server_are_all_kept(tmp_path: Path) -> None:
    """By default, calls of different clients that may write take turns. Each waits for its own calls."""
    home, file = tmp_path / "mcpd", tmp_path / "memory.json"
    home.mkdir()
    program = tmp_path / "notes"
    program.write_text(f'#!/bin/sh\nexec "{memory()}"\n')
    program.chmod(0o700)
    servers = {"notes": stdio(str(program), environ={"MEMORY_FILE_PATH": str(file)})}
    with harness.running(home, servers) as daemon, ThreadPoolExecutor(4) as threads:
        daemon.wait_connected("notes")

        def write(number: int) -> None:
            tool = "create_entities" if number % 2 else "notes__create_entities"
            client = McpClient(daemon, VERSIONS[number], server="notes" if number % 2 else None)
            for each in range(25):
                arguments = {"entities": [sharing.entity(f"{number}-{each}")]}
                assert not client.request("tools/call", name=tool, arguments=arguments).get("isError")

        list(threads.map(write, range(4)))
    assert len(file.read_text().splitlines()) == 100


def test_concurrent_writes_of_four_clients_are_all_kept(tmp_path: Path) -> None:
    """mcpd recognizes servers that lose overlapping updates by their command line, and serializes their
    writes.
    """
    home = tmp_path / "mcpd"
    home.mkdir()
    servers = {"memory": stdio(memory(), environ={"MEMORY_FILE_PATH": str(tmp_path / "memory.json")})}
    with harness.running(home, servers) as daemon:
        daemon.wait_connected("memory")
        versions = {"alice": REVISION, "bob": "2025-11-25", "carol": REVISION, "dave": "2025-06-18"}
        users = {name: (Attached(daemon, version), {"name": "memory"}) for name, version in versions.items()}
        assert sharing.writings(users, tmp_path) == []
