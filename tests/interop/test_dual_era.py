"""Servers of other projects that speak both eras: every client gets what it would get directly.

Their tools ask in the ordinary way of their SDK, which works only in a legacy session. So such a server gets
a second connection, for the clients of the legacy era.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.e2e import harness
from tests.e2e.harness import Daemon, Json
from tests.gateway.mcp_client import MODERN, McpClient
from tests.interop import peers
from tests.interop.attached import Attached
from tests.interop.clients.drivers import HERE as CLIENTS
from tests.interop.clients.drivers import Driver, modules, node, stdio
from tests.interop.everything import check_all, everything
from tests.interop.peers import AT_2026, made
from tests.interop.sharing import library
from tests.interop.test_through import by_url
from tests.processes import gone, wait_until

NAME = "dual"
KINDS = {
    "legacy": ["2025-11-25", "2025-06-18"],
    "modern": [MODERN],
    "mixed": [MODERN, "2025-11-25"],
}
LIBRARIES = {
    "legacy": ["python-sdk-1", "typescript-sdk-1"],
    "modern": ["python-sdk-2", "typescript-sdk-2", "fastmcp-4"],
}


@contextmanager
def shared(definition: Json, home: Path) -> Iterator[Daemon]:
    home.mkdir()
    with harness.running(home, {NAME: definition}, "--http", "127.0.0.1:0") as daemon:
        daemon.wait_connected(NAME)
        yield daemon


def use_all(
    daemon: Daemon, clients: Sequence[tuple[Driver, Json, bool]], home: Path, way: str, generation: int = 2
) -> list[str]:
    """Let all clients use the server at the same time, each with what it connects to and whether it is
    modern. Return what was wrong.
    """
    users = {f"client{n}": (driver, entry) for n, (driver, entry, _) in enumerate(clients)}
    modern = {f"client{n}": is_modern for n, (_, _, is_modern) in enumerate(clients)}
    home.mkdir(exist_ok=True)
    return check_all(users, home, modern=modern, certain_logs=way == "http", generation=generation)


def attached(daemon: Daemon, kind: str) -> list[tuple[Driver, Json, bool]]:
    versions = [KINDS[kind][n % len(KINDS[kind])] for n in range(8)]
    return [(Attached(daemon, each), {"name": NAME}, each == MODERN) for each in versions]


def assert_one_server(daemon: Daemon, kind: str, way: str) -> list[int]:
    """Assert that there are at most two connections, and one server for users. Return the processes."""
    used = daemon.status(NAME)["connections"]
    assert [each["era"] for each in used] == ["modern", "legacy"][: 1 if kind == "modern" else 2]
    assert [each["restarts"] for each in used] == [0] * len(used)
    started = [each["pid"] for each in used if each["pid"]]
    assert len(started) == (len(used) if way == "stdio" else 0)
    assert [each["name"] for each in daemon.client().request("mcpd/status")["servers"]] == [NAME]
    return started


@pytest.mark.parametrize(("kind", "way"), [("mixed", "stdio"), ("mixed", "http"), ("modern", "stdio")])
def test_eight_clients_at_once_get_their_own_messages(kind: str, way: str, tmp_path: Path) -> None:
    """Over at most two connections, none of which is left afterwards."""
    with everything(way) as definition, shared(definition, tmp_path / "mcpd") as daemon:
        assert use_all(daemon, attached(daemon, kind), tmp_path, way) == []
        started = assert_one_server(daemon, kind, way)
    wait_until(lambda: all(map(gone, started)))


@pytest.mark.parametrize("way", ["stdio", "http"])
def test_eight_clients_share_a_server_of_the_legacy_era(way: str, tmp_path: Path) -> None:
    """The everything-server of the first generation of the SDK, over one connection. Over HTTP, it sends
    sampling requests outside of their calls, which mcpd learns from the first.
    """
    with everything(way, generation=1) as definition, shared(definition, tmp_path / "mcpd") as daemon:
        users = attached(daemon, "mixed")
        assert use_all(daemon, users[1:2], tmp_path / "first", "http", generation=1) == []
        assert use_all(daemon, users, tmp_path, way, generation=1) == []
        assert [each["era"] for each in daemon.status(NAME)["connections"]] == ["legacy"]


@pytest.mark.slow
def test_clients_by_others_are_asked_by_a_server_of_the_legacy_era(tmp_path: Path) -> None:
    """Over HTTP, also those of the revision without sessions."""
    with everything("stdio", generation=1) as definition, shared(definition, tmp_path / "mcpd") as daemon:
        names = [*LIBRARIES["legacy"], *LIBRARIES["modern"]]
        users = [(library(name), by_url(daemon, NAME), name in AT_2026) for name in names]
        assert use_all(daemon, users, tmp_path, "stdio", generation=1) == []


_FASTMCP = """
from fastmcp import Context, FastMCP
server = FastMCP("fastmcp")

@server.tool()
async def elicit(message: str, ctx: Context) -> str:
    return (await ctx.elicit(message, response_type=str)).data

server.run(show_banner=False)
"""


def typescript(*arguments: str) -> Json:
    """Return a definition of the server on the TypeScript SDK 2.x."""
    if not (modules("@modelcontextprotocol/server")).exists():
        pytest.skip("the TypeScript SDK is not there: `make interop` installs it")
    return stdio(node(), str(CLIENTS / "server2.mjs"), *arguments)


def ask_all(daemon: Daemon) -> list[str]:
    """Let eight clients of two legacy revisions be asked at the same time; return what the tool got."""

    def ask(number: int) -> str:
        name = f"client{number}"

        def answer(method: str, params: Json) -> Json:
            if method == "roots/list":
                return {"roots": []}
            return {
                "action": "accept",
                "content": dict.fromkeys(params["requestedSchema"]["properties"], name),
            }

        client = McpClient(daemon, KINDS["legacy"][number % 2], server=NAME, answer=answer)
        text = client.call("elicit", {"message": f"{name}?"})
        assert [params["message"] for method, params in client.asked if method != "roots/list"] in (
            [f"{name}?"],
            [],
        )
        return text

    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(ask, range(8)))


@pytest.mark.parametrize("library", ["fastmcp", "typescript"])
def test_tools_that_ask_in_the_ordinary_way_reach_legacy_clients(library: str, tmp_path: Path) -> None:
    definition = typescript() if library == "typescript" else stdio(made(".venv-fastmcp"), "-c", _FASTMCP)
    with shared(definition, tmp_path / "mcpd") as daemon:
        for number, text in enumerate(ask_all(daemon)):
            assert f"client{number}" in text
        assert [each["revision"] for each in daemon.status(NAME)["connections"]] == [MODERN, "2025-11-25"]


def test_server_without_sessions_cannot_ask_and_keeps_one_connection(tmp_path: Path) -> None:
    """The TypeScript SDK serves the legacy era over HTTP without sessions, unless one adds them."""
    port = peers.free_port()
    program = typescript(str(port))
    with (
        peers.listening([program["command"], *program["args"]], port),
        shared({"url": f"http://127.0.0.1:{port}/mcp"}, tmp_path / "mcpd") as daemon,
    ):
        assert all("not available on protocol revision" in text for text in ask_all(daemon))
        assert [each["revision"] for each in daemon.status(NAME)["connections"]] == [MODERN]


def test_process_of_one_client_speaks_the_era_of_its_client(tmp_path: Path) -> None:
    """With `share: client`, each client has a process anyway, so that none gets a second one.

    The clients stay connected until the processes have been counted: each ends with its client.
    """
    with everything("stdio") as definition:
        definition = {**definition, "share": "client"}
        with shared(definition, tmp_path / "mcpd") as daemon, ExitStack() as connected:
            versions = (MODERN, "2025-11-25")
            users: list[tuple[Driver, Json, bool]] = [
                (Attached(daemon, version, until=connected), {"name": NAME}, version == MODERN)
                for version in versions
            ]
            assert use_all(daemon, users, tmp_path, "http") == []
            found = daemon.client().request("mcpd/status")["servers"]
            assert sorted((each["name"], len(each["connections"])) for each in found) == [
                (NAME, 1),
                (f"{NAME}~1", 1),
                (f"{NAME}~2", 1),
            ]
