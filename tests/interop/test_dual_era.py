"""Servers of other projects that speak both eras: every client gets what it would get directly.

Their tools ask in the ordinary way of their SDK, which works only in a legacy session. So such a server gets
a second connection, for the clients of the legacy era.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e import harness
from tests.e2e.harness import Daemon, Json
from tests.gateway.mcp_client import MODERN, McpClient
from tests.interop import peers
from tests.interop.clients.drivers import HERE as CLIENTS
from tests.interop.clients.drivers import modules, node, stdio
from tests.interop.peers import ROOT, made
from tests.processes import gone

NAME = "dual"
EVERYTHING = ROOT / ".everything"
"""`make interop` puts the everything-server of the Python SDK's source package there."""
KINDS = {
    "legacy": ["2025-11-25", "2025-06-18"],
    "modern": [MODERN],
    "mixed": [MODERN, "2025-11-25"],
}
_LEVEL = "io.modelcontextprotocol/logLevel"
_RUN = "from mcp_everything_server.server import mcp; mcp.run()"
_SERVE = "from mcp_everything_server.server import main; main()"


@contextmanager
def everything(way: str) -> Iterator[Json]:
    """Yield a definition of the everything-server, which is started by mcpd or runs over HTTP."""
    if not EVERYTHING.exists():
        pytest.skip(f"{EVERYTHING} is not there: `make interop` makes it")
    environ = {"PYTHONPATH": str(EVERYTHING)}
    if way == "stdio":
        yield stdio(sys.executable, "-c", _RUN, environ=environ)
        return
    port = peers.free_port()
    with peers.listening([sys.executable, "-c", _SERVE, "--port", str(port)], port, environ):
        yield {"url": f"http://127.0.0.1:{port}/mcp"}


@contextmanager
def shared(definition: Json, home: Path) -> Iterator[Daemon]:
    home.mkdir()
    with harness.running(home, {NAME: definition}) as daemon:
        daemon.wait_connected(NAME)
        yield daemon


class Tagged:
    """A client that answers every question with its own tag."""

    def __init__(self, daemon: Daemon, version: str, tag: str) -> None:
        self.tag = tag
        self.client = McpClient(daemon, version, server=NAME, answer=self._answer)

    def _answer(self, method: str, params: Json) -> Json:
        if method == "elicitation/create":
            names = params["requestedSchema"]["properties"]
            return {"action": "accept", "content": dict.fromkeys(names, self.tag)}
        if method == "roots/list":
            return {"roots": [{"uri": f"file:///{self.tag}", "name": self.tag}]}
        return {"role": "assistant", "model": "m", "content": {"type": "text", "text": self.tag}}

    def questions(self) -> list[str]:
        """Return the texts of the questions that it was asked."""
        return [
            params["message"] if "message" in params else params["messages"][0]["content"]["text"]
            for method, params in self.client.asked
            if method != "roots/list"
        ]

    def use(self) -> list[str]:
        """Call all tools at the same time, and return everything that is wrong."""
        ask = _ask_in_rounds if self.client.modern else _ask_in_a_session
        return [f"{self.tag} ({self.client.version}): {wrong}" for wrong in ask(self)]

    def call_all(self, calls: Sequence[tuple[str, Json]]) -> list[str]:
        level = {_LEVEL: "debug"} if self.client.modern else {}
        params: list[Json] = [
            {"name": tool, "arguments": arguments, "_meta": {"progressToken": f"{self.tag}:{tool}", **level}}
            for tool, arguments in calls
        ]
        return [result["content"][0]["text"] for result in self.client.request_all("tools/call", params)]

    def complaints_about_notifications(self) -> list[str]:
        progress, logs = [], []
        for message in self.client.heard:
            params = message.get("params", {})
            if message["method"] == "notifications/progress":
                progress.append((params["progressToken"], params["progress"]))
            elif message["method"] == "notifications/message":
                logs.append(params["data"])
        expected = [(f"{self.tag}:test_tool_with_progress", done) for done in (0, 50, 100)]
        lines = [f"Tool {what}" for what in ("execution started", "processing data", "execution completed")]
        wrong = []
        if progress != expected:
            wrong.append(f"its progress is {progress}")
        # A modern client also gets lines of other clients' overlapping calls: stdio does not name the call.
        if set(logs) != set(lines) if self.client.modern else logs != lines:
            wrong.append(f"its log lines are {logs}")
        return wrong


_NOTIFYING: list[tuple[str, Json]] = [("test_tool_with_progress", {}), ("test_tool_with_logging", {})]


def _ask_in_a_session(user: Tagged) -> list[str]:
    """Use the tools that send requests of their own. These cannot ask a modern client, also not directly."""
    tag = user.tag
    sampled, elicited, *_ = user.call_all(
        [
            ("test_sampling", {"prompt": f"{tag} samples"}),
            ("test_elicitation", {"message": f"{tag} elicits"}),
            *_NOTIFYING,
        ]
    )
    wrong = user.complaints_about_notifications()
    if sampled != f"LLM response: {tag}":
        wrong.append(sampled)
    if elicited != f'User response: action=accept, content={{"response":"{tag}"}}':
        wrong.append(elicited)
    if sorted(user.questions()) != [f"{tag} elicits", f"{tag} samples"]:
        wrong.append(f"it was asked {user.questions()}")
    return wrong


def _ask_in_rounds(user: Tagged) -> list[str]:
    """Use the tools that return `input_required`."""
    elicited, sampled, rounds, *_ = user.call_all(
        [
            ("test_input_required_result_elicitation", {}),
            ("test_input_required_result_sampling", {}),
            ("test_input_required_result_multi_round", {}),
            *_NOTIFYING,
        ]
    )
    wrong = user.complaints_about_notifications()
    return wrong + [text for text in (elicited, sampled, rounds) if user.tag not in text]


def use_all(users: Sequence[Tagged]) -> list[str]:
    with ThreadPoolExecutor(len(users)) as pool:
        return [wrong for found in pool.map(Tagged.use, users) for wrong in found]


def pids(daemon: Daemon) -> list[int]:
    return [each["pid"] for each in daemon.status(NAME)["connections"]]


@pytest.mark.parametrize("way", ["stdio", "http"])
@pytest.mark.parametrize("kind", KINDS)
def test_eight_clients_at_once_get_their_own_questions(kind: str, way: str, tmp_path: Path) -> None:
    """Over at most two connections, none of which is left afterwards."""
    versions = KINDS[kind]
    with everything(way) as definition, shared(definition, tmp_path / "mcpd") as daemon:
        users = [Tagged(daemon, versions[n % len(versions)], f"client{n}") for n in range(8)]
        assert use_all(users) == []
        used = daemon.status(NAME)["connections"]
        assert [each["era"] for each in used] == ["modern", "legacy"][: 1 if kind == "modern" else 2]
        assert [each["restarts"] for each in used] == [0] * len(used)
        started = [each["pid"] for each in used if each["pid"]]
        assert len(started) == (len(used) if way == "stdio" else 0)
        assert [each["name"] for each in daemon.client().request("mcpd/status")["servers"]] == [NAME]
    assert all(gone(pid) for pid in started)


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
        user = Tagged(daemon, KINDS["legacy"][number % 2], f"client{number}")
        text = user.client.call("elicit", {"message": f"{user.tag}?"})
        assert user.questions() in ([f"{user.tag}?"], [])
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
    """With `share: client`, each client has a process anyway, so that none gets a second one."""
    with everything("stdio") as definition:
        definition = {**definition, "share": "client"}
        with shared(definition, tmp_path / "mcpd") as daemon:
            users = [Tagged(daemon, version, f"client-{version}") for version in (MODERN, "2025-11-25")]
            assert use_all(users) == []
            found = daemon.client().request("mcpd/status")["servers"]
            assert sorted((each["name"], len(each["connections"])) for each in found) == [
                (NAME, 1),
                (f"{NAME}~1", 1),
                (f"{NAME}~2", 1),
            ]
