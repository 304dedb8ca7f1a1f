"""`mcpctl daemon upgrade`: the daemon is replaced by the installed version, and nobody notices."""

from __future__ import annotations

import itertools
import json
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import attrs
import pytest

from tests.e2e.conftest import Start
from tests.e2e.harness import BOUND, Client, Daemon, Json, Refused, fake, in_flight, running, wait_until
from tests.e2e.web import PORT, Session, http_endpoint, meta
from tests.stopwatch import stopwatch

UPGRADES = 5
PAUSE = 0.5
"""Seconds that a client may have to wait on an idle machine. Each of its cores may have another process."""
URI = "test://watched"
PROGRAM = f"#!{sys.executable}\nimport os, sys\n{{body}}\nfrom mcpd.main import main\nmain()\n"


def upgrade(daemon: Daemon) -> Json:
    with daemon.client(2 * BOUND) as client:
        return dict(client.request("mcpd/upgrade"))


def install(home: Path, body: str = "") -> tuple[str, ...]:
    """Install a version of mcpd, which runs `body` first."""
    path = home / "mcpd"
    path.write_text(PROGRAM.format(body=body))
    path.chmod(0o755)
    return (str(path),)


def text(result: Json) -> Any:
    return json.loads(result["content"][0]["text"])


@attrs.define(eq=False)
class Caller:
    """Calls a tool again and again, each time with another number."""

    name: str
    call: Callable[[str, Json], Json]
    """Calls a tool of the servers `one` and `two`, and returns the result."""
    made: list[str] = attrs.field(factory=list)
    wrong: list[object] = attrs.field(factory=list)
    longest: float = 0.0

    def run(self, stop: threading.Event) -> None:
        for number in itertools.count():
            if stop.is_set():
                return
            key = f"{self.name}-{number}"
            self.made.append(key)
            with stopwatch() as watch:
                try:
                    answer = text(self.call(("one", "two")[number % 2], {"n": key}))
                except Exception as error:
                    self.wrong.append((key, repr(error)))
                    return
                self.longest = max(self.longest, watch.seconds)
            if answer != {"n": key}:
                self.wrong.append((key, answer))


class BridgeClient(Client):
    """A client that an editor's bridge connects."""

    def __init__(self, daemon: Daemon) -> None:
        self.socket, theirs = socket.socketpair()
        with theirs:
            self.bridge = subprocess.Popen(
                [sys.executable, "-m", "ctl", "bridge"],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=subprocess.DEVNULL,
                env={**daemon.environ, "MCPD_SOCKET": daemon.socket, "MCPD_NO_START": "1"},
            )
        self.socket.settimeout(BOUND)
        self._bound = BOUND
        self._ids = itertools.count(1)
        self._buffer = b""
        self._answers: dict[object, Json] = {}
        self.notifications: list[Json] = []

    def close(self) -> None:
        super().close()
        self.bridge.wait(BOUND)


@contextmanager
def eight_callers(daemon: Daemon) -> Iterator[list[Caller]]:
    """Clients of both eras, over the socket, a bridge and HTTP."""
    web = http_endpoint(daemon)
    clients = [daemon.client(), daemon.client(), BridgeClient(daemon), BridgeClient(daemon)]
    modern = {"_meta": meta() | {"io.modelcontextprotocol/clientInfo": {"name": "new", "version": "1"}}}
    callers = []
    for number, client in enumerate(clients):
        more: Json = modern if number % 2 else {}
        if not more:
            client.initialize()

        def call(server: str, given: Json, client: Client = client, more: Json = more) -> Json:
            return dict(client.request("tools/call", name=f"{server}__echo", arguments=given, **more))

        callers.append(Caller(f"socket{number}", call))
    control = daemon.client()
    callers.append(
        Caller("control", lambda server, given: dict(control.call(server, "echo", given, raw=True)))
    )
    with web.client() as one, web.client() as two, web.client() as three:
        for number, http in enumerate([one, two, three]):
            session = Session(http, "/mcp")

            def post(server: str, given: Json, session: Session = session) -> Json:
                answer = session.call(f"{server}__echo", **given).json()
                return dict(answer["result"])

            callers.append(Caller(f"http{number}", post))
        try:
            yield callers
        finally:
            for client in clients:
                client.close()


def test_eight_clients_do_not_notice(start: Start, tmp_path: Path) -> None:
    """No call is lost, or run twice, no server is started again, and nobody waits for long. A call that takes
    long spans all upgrades."""
    records = [tmp_path / "one.record", tmp_path / "two.record"]
    servers = {
        "one": fake("--era", "legacy", "--record", str(records[0])),
        "two": fake("--record", str(records[1])),
    }
    daemon = start(servers, *PORT)
    daemon.wait_connected(*servers)
    before = [daemon.status(name)["pid"] for name in servers]
    stop = threading.Event()
    with eight_callers(daemon) as callers, daemon.client() as patient:
        patient.initialize()
        long = patient.send("tools/call", name="two__progress", arguments={"total": 100_000, "every": 0.05})
        threads = [threading.Thread(target=each.run, args=(stop,)) for each in callers]
        for thread in threads:
            thread.start()
        try:
            pauses = [upgrade(daemon)["pause"] for _ in range(UPGRADES)]
        finally:
            stop.set()
            for thread in threads:
                thread.join(BOUND)
        patient.notify("notifications/cancelled", requestId=long)
        made = [key for each in callers for key in each.made]
        assert [each.wrong for each in callers if each.wrong] == []
        assert min(len(each.made) for each in callers) > UPGRADES
    assert [daemon.status(name)["pid"] for name in servers] == before
    assert daemon.process.poll() is None
    assert max(pauses) < 10 * PAUSE
    wait_until(lambda: '"notifications/cancelled"' in records[1].read_text(), lambda: "not cancelled")
    run = Counter(key for record in records for key in called(record))
    assert {key: run[key] for key in made if run[key] != 1} == {}
    assert "error" not in {json.loads(line)["level"] for line in daemon.log.splitlines()}


def called(record: Path) -> Iterator[str]:
    for line in record.read_text().splitlines():
        way, _, message = line.partition(" ")
        if way == "in" and '"tools/call"' in message:
            yield str(json.loads(message)["params"].get("arguments", {}).get("n"))


def attached(daemon: Daemon, server: str) -> Client:
    client = daemon.client()
    client.request("mcpd/attach", server=server)
    return client


def updated(client: Client) -> Json:
    """Return the next notification that the resource has changed."""
    while "resources/updated" not in (found := client.next_notification())["method"]:
        pass
    return dict(found["params"])


def test_a_session_is_as_before(start: Start) -> None:
    """Its subscriptions, a request that has arrived in part, progress, and calls that wait for their turn."""
    offers = ("--capabilities", "tools,resources", "--subscribable")
    servers = {
        "one": fake(*offers, "--era", "legacy"),
        "two": fake(*offers, "--era", "modern"),
        "turns": fake(concurrency="serial"),
    }
    daemon = start(servers)
    daemon.wait_connected(*servers)
    old, new, late = attached(daemon, "one"), attached(daemon, "two"), attached(daemon, "turns")
    old.initialize()
    old.request("resources/subscribe", uri=URI)
    wanted: Json = {"resourceSubscriptions": [URI]}
    stream = new.send("subscriptions/listen", notifications=wanted, _meta=meta())
    new.next_notification()
    moving = {"total": 4, "every": 0.1}
    call = old.send("tools/call", name="progress", arguments=moving, _meta={"progressToken": "mine"})
    late.initialize()
    turns = [late.send("tools/call", name="late", arguments={"seconds": 2}) for _ in range(2)]
    in_flight(daemon, "one", 1)
    in_flight(daemon, "turns", 1)
    late.socket.sendall(b'{"jsonrpc":"2.0","id":77,"method":"mcpd/call","params":{"server":"one",')
    upgrade(daemon)
    late.socket.sendall(b'"tool":"echo","arguments":{"a":1},"raw":true}}\n')
    assert text(late.answer(77)) == {"a": 1}
    assert [late.answer(key)["content"][0]["text"] for key in turns] == ["late", "late"]
    assert old.answer(call)["content"]
    steps = [each["params"]["progress"] for each in old.notifications if "progress" in each["method"]]
    assert [later - step for step, later in itertools.pairwise(steps)] == pytest.approx([0.1] * 39)
    with daemon.client() as client:
        client.call("one", "notify", {"method": "notifications/resources/updated", "params": {"uri": URI}})
        client.call("two", "notify", {"method": "notifications/resources/updated", "params": {"uri": URI}})
    assert updated(old)["uri"] == URI
    assert updated(new)["_meta"]["io.modelcontextprotocol/subscriptionId"] == stream


def test_a_client_answers_a_question_of_the_version_before(start: Start) -> None:
    """The person is asked once, and the answer gets to the call, although it came in between."""
    daemon = start({"one": fake("--era", "legacy")})
    daemon.wait_connected("one")
    client = daemon.client()
    client.initialize(elicitation={})
    schema = {"type": "object", "properties": {"name": {"type": "string"}}}
    asked = {"method": "elicitation/create", "params": {"message": "who?", "requestedSchema": schema}}
    call = client.send("tools/call", name="one__ask", arguments=asked)
    question = client.next_notification()
    assert question["params"]["message"] == "[one] who?"
    upgrade(daemon)
    answer = {"action": "accept", "content": {"name": "zed"}}
    client.send_raw(json.dumps({"jsonrpc": "2.0", "id": question["id"], "result": answer}).encode())
    assert "zed" in client.answer(call)["content"][0]["text"]
    assert client.notifications == []


class Remote(BaseHTTPRequestHandler):
    """A server that counts its sessions, and the ids of requests."""

    sessions: ClassVar[list[str]] = []
    ids: ClassVar[list[int]] = []

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if message["method"] == "initialize":
            self.sessions.append(f"session-{len(self.sessions)}")
            about = {"name": "remote", "version": "1"}
            result: Json = {
                "protocolVersion": "2025-11-25",
                "capabilities": {"tools": {}},
                "serverInfo": about,
            }
        elif message["method"] == "tools/list":
            result = {"tools": [{"name": "which", "inputSchema": {"type": "object"}}]}
        else:
            result = {"content": [{"type": "text", "text": self.headers.get("mcp-session-id", "none")}]}
        is_request = "id" in message and message["method"] != "server/discover"
        body = json.dumps({"jsonrpc": "2.0", "id": message.get("id"), "result": result}).encode()
        if is_request:
            self.ids.append(message["id"])
        self.send_response(200 if is_request else 202 if "id" not in message else 400)
        self.send_header("Content-Type", "application/json")
        self.send_header("Mcp-Session-Id", self.sessions[-1] if self.sessions else "")
        self.send_header("Content-Length", str(len(body) if is_request else 0))
        self.end_headers()
        self.wfile.write(body if is_request else b"")

    def do_GET(self) -> None:
        self.send_error(405)

    do_DELETE = do_GET

    def log_message(self, *_: object) -> None: ...


def test_the_session_of_a_remote_server_goes_on(start: Start) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Remote) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        daemon = start({"far": {"url": f"http://127.0.0.1:{server.server_port}/mcp", "type": "http"}})
        daemon.wait_connected("far")
        with daemon.client() as client:
            for _ in range(2):
                assert client.call("far", "which", raw=True)["content"][0]["text"] == "session-0"
                upgrade(daemon)
            assert client.call("far", "which", raw=True)["content"][0]["text"] == "session-0"
        server.shutdown()
    assert Remote.sessions == ["session-0"]
    assert len(Remote.ids) == len(set(Remote.ids)), "ids are used once in a session"


BROKEN = {
    "sys.exit('it is broken')": "it is broken",
    "import mcpd.process.replacement as new; new.FORMAT = 99": "format 99",
    "import mcpd.daemon as new; new.Gateway = lambda *_: 1 / 0": "division by zero",
    "'MCPD_UPGRADE' in os.environ and os.environ.update(MCPD_SERVERS='[{}]')": "add 'name'",
}


@pytest.mark.parametrize("body", BROKEN)
def test_a_broken_version_does_not_take_over(start: Start, tmp_path: Path, body: str) -> None:
    daemon = start({"one": fake()}, program=install(tmp_path))
    daemon.wait_connected("one")
    pid = daemon.status("one")["pid"]
    install(tmp_path, body)
    done = daemon.mcpctl("daemon", "upgrade")
    assert done.returncode == 1
    assert "mcpd was not upgraded" in done.stderr
    assert BROKEN[body] in done.stderr
    assert daemon.status("one")["pid"] == pid
    install(tmp_path)
    done = daemon.mcpctl("daemon", "upgrade")
    assert done.returncode == 0, done.stderr
    assert daemon.status("one")["pid"] == pid


LATE = {
    "it exits": "os.environ.get('MCPD_UPGRADE', '')[:4] == 'take' and sys.exit(7)",
    "it fails while it takes over": (
        "import mcpd.daemon as new\n"
        "def broken(*_): raise RuntimeError('broken')\n"
        "os.environ.get('MCPD_UPGRADE', '')[:4] == 'take' and setattr(new._Daemon, 'run', broken)"
    ),
}


@pytest.mark.parametrize("kind", LATE)
def test_the_old_version_goes_on_if_the_new_one_fails_after_its_trial(tmp_path: Path, kind: str) -> None:
    """It has another process id then, but its servers and clients stay."""
    with running(tmp_path, {"one": fake()}, program=install(tmp_path)) as daemon:
        daemon.wait_connected("one")
        pid = daemon.status("one")["pid"]
        client = daemon.client()
        client.initialize()
        call = client.send("tools/call", name="one__late", arguments={"seconds": 2})
        install(tmp_path, LATE[kind])
        with pytest.raises(Refused, match="mcpd was not upgraded"):
            upgrade(daemon)
        assert client.answer(call)["content"][0]["text"] == "late"
        assert text(client.request("tools/call", name="one__echo", arguments={"n": 1})) == {"n": 1}
        assert daemon.status("one")["pid"] == pid
        assert daemon.process.wait(BOUND) != 0
        assert "mcpd was not upgraded" in daemon.log
        assert ("RuntimeError: broken" in daemon.log) == ("takes over" in kind)
        with suppress(EOFError):
            client.request("mcpd/shutdown")
