"""The ways into the daemon. Each sends the input of a case, which its seed and number determine."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import attrs

from mcpd.auth.token_store import TokenStore
from tests.auth.test_token_store import LOGIN
from tests.corruption import corrupt
from tests.e2e.harness import BOUND, Client, Json, Refused, fake, running
from tests.fuzz import messages
from tests.fuzz.generate import DIE, garble
from tests.fuzz.target import (
    Target,
    Wrong,
    all_answers,
    answers,
    check_lines,
    connect,
    first_answer,
    must_answer,
    wrong,
)
from tests.fuzz.world import World


class Lines(Target):
    """Lines on the Unix socket: control requests and MCP, and clients that do not read."""

    name = "socket"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._open: list[socket.socket] = []

    def send(self, number: int) -> None:
        dice = self.die(number)
        sent = lines(dice)
        awaited = must_answer(sent)
        data = b"\n".join(sent) + (b"\n" if awaited or dice.random() < 0.95 else b"")
        connection = connect(self.world.daemon.socket)
        _send(connection, data, dice)
        end = dice.random()
        if awaited and end < 0.9:
            with connection:
                check_lines(all_answers(connection, awaited))
        elif end < 0.1:
            self._open.append(connection)
            if len(self._open) > 20:
                self._open.pop(0).close()
        else:
            with connection:
                if end < 0.8:
                    check_lines(answers(connection))

    def close(self) -> None:
        for connection in self._open:
            connection.close()
        self._open.clear()


def lines(dice: DIE, *, mcp_only: bool = False) -> list[bytes]:
    """Return what one client sends."""
    is_mcp = mcp_only or dice.random() < 0.6
    found = []
    if is_mcp and dice.random() < 0.7:
        hello = messages.params(dice, "initialize")
        if not mcp_only and dice.random() < 0.5:
            attach = {"jsonrpc": "2.0", "id": "a", "method": "mcpd/attach", "params": {"server": "odd"}}
            found.append(messages.line(attach, dice))
        found.append(
            messages.line({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello}, dice)
        )
        found.append(b'{"jsonrpc":"2.0","method":"notifications/initialized"}')
    for _ in range(dice.choice((1, 1, 2, 5, 20))):
        message = messages.client_message(dice) if is_mcp else messages.control_message(dice)
        found.append(messages.line(message, dice))
    return [line for line in found if messages.is_allowed(line)]


def _send(connection: socket.socket, data: bytes, dice: DIE) -> None:
    at = dice.randrange(len(data) + 1) if dice.random() < 0.2 else len(data)
    with suppress(OSError):  # it may refuse the first part and close
        connection.sendall(data[:at])
        connection.sendall(data[at:])


class Http(Target):
    """HTTP requests on the port and on the socket, with the token and without."""

    name = "http"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._open: list[socket.socket] = []

    def send(self, number: int) -> None:
        dice = self.die(number)
        data, is_good = self._request(dice)
        data += b"".join(self._request(dice)[0] for _ in range(dice.choice((0, 0, 0, 1, 4))))
        if dice.random() < 0.5:
            connection = socket.create_connection(("127.0.0.1", self.world.endpoint.port), BOUND)
        else:
            connection = connect(self.world.daemon.socket)
        _send(connection, data, dice)
        if dice.random() < 0.05:
            self._open.append(connection)
            if len(self._open) > 20:
                self._open.pop(0).close()
            return
        with connection:
            got = first_answer(connection) if is_good else answers(connection)
        if got and not got.startswith((b"HTTP/1.1 ", b"{")):  # a request that begins with a brace is a line
            raise Wrong(f"not a response: {got[:300]!r}")
        if b"an error in mcpd itself" in got:
            raise Wrong(f"{got[:500]!r}")

    def close(self) -> None:
        for connection in self._open:
            connection.close()
        self._open.clear()

    def _request(self, dice: DIE) -> tuple[bytes, bool]:
        """Return a request, and whether it must get an answer."""
        path = dice.choice(PATHS)
        body = b""
        if dice.random() < 0.8:
            found = lines(dice, mcp_only=path != b"/rpc")
            body = dice.choice(found) if found else b""
        method = dice.choice(
            (b"POST", b"POST", b"POST", b"POST", b"GET", b"DELETE", b"OPTIONS", b"PUT", b"X")
        )
        headers = [b"Host: 127.0.0.1:%d" % self.world.endpoint.port]
        is_good = True
        if dice.random() < 0.8:
            headers.append(b"Authorization: Bearer " + self.world.endpoint.token.encode())
        if dice.random() < 0.8:
            headers.append(b"Content-Type: application/json")
            headers.append(b"Accept: application/json, text/event-stream")
        if dice.random() < 0.5:
            headers.append(b"MCP-Protocol-Version: " + dice.choice(messages.REVISIONS).encode())
        for name in _HEADERS:
            if dice.random() < 0.06:
                headers.append(name + b": " + dice.choice(_VALUES))
                is_good = is_good and name not in _FRAMING
        if dice.random() < 0.15:
            size = dice.choice((1, 7, 100, 100_000))
            parts = [body[at : at + size] for at in range(0, min(len(body), 400 * size), size)]
            body = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
            headers.append(b"Transfer-Encoding: chunked")
        elif body or dice.random() < 0.5:
            error = dice.choice((0,) * 15 + (1, -1, 10**12))
            headers.append(b"Content-Length: %d" % (len(body) + error))
            is_good = is_good and not error
        head = b"%b %b HTTP/1.1\r\n%b\r\n\r\n" % (method, path, b"\r\n".join(headers))
        sent = garble(head, dice)
        return sent + body, is_good and sent == head


PATHS: Sequence[bytes] = (
    b"/mcp /mcp /mcp /servers/odd/mcp /servers/hostile/mcp /servers/nobody/mcp /rpc /rpc /health /metrics / "
    b"/page/login /mcp/profile /.well-known/oauth-protected-resource /page/ws /favicon.ico //mcp /mcp?x=y "
    b"http://127.0.0.1/mcp * /%2e%2e/mcp"
).split()
_HEADERS = (
    b"Mcp-Session-Id",
    b"Mcp-Method",
    b"Mcp-Name",
    b"Last-Event-ID",
    b"Origin",
    b"Sec-Fetch-Site",
    b"Upgrade",
    b"Connection",
    b"Expect",
    b"Content-Length",
    b"Transfer-Encoding",
    b"Sec-WebSocket-Key",
    b"Cookie",
    b"Host",
    b"Accept",
    b"Content-Encoding",
)
_VALUES = (
    b"tools/call",
    b"echo",
    b"websocket",
    b"h2c",
    b"upgrade",
    b"close",
    b"100-continue",
    b"chunked",
    b"gzip",
    b"0",
    b"-1",
    b"1",
    b"null",
    b"same-origin",
    b"cross-site",
    b"\xff",
    b"a" * 5000,
    b"=?base64?ZWNobw==?=",
    b"13",
    b"AAAAAAAAAAAAAAAAAAAAAA==",
)


_FRAMING = (b"Upgrade", b"Connection", b"Expect", b"Content-Length", b"Transfer-Encoding")
"""Headers after which the daemon may wait for more, or close."""


class Bridge(Target):
    """What an editor writes to `mcpctl bridge`. It must exit with 0 when the editor closes its stdin."""

    name = "bridge"
    batch = 1

    def send(self, number: int) -> None:
        dice = self.die(number)
        found = [line for _ in range(dice.choice((1, 5, 20))) for line in lines(dice, mcp_only=True)]
        one = ["--server", "odd"] if dice.random() < 0.5 else []
        done = subprocess.run(
            [sys.executable, "-m", "ctl", "bridge", *one],
            env=self.world.daemon.environ,
            input=b"\n".join(found) + b"\n",
            capture_output=True,
            timeout=2 * BOUND,
        )
        if done.returncode or b"Traceback" in done.stderr:
            raise Wrong(f"the bridge exited with {done.returncode}: {done.stderr[-2000:]!r}")
        check_lines(done.stdout)


class Server(Target):
    """Calls of a server on a pipe that answers with anything. Each call must get an answer."""

    name = "stdio"
    server = "hostile"
    batch = 40

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._connected: Client | None = None

    @property
    def _client(self) -> Client:
        if self._connected is None:
            self._connected = Client(self.world.daemon.socket)
        return self._connected

    def send(self, number: int) -> None:
        self.send_all([number])

    def send_all(self, numbers: Iterable[int]) -> None:
        """All calls run at the same time: some get their answer only by the timeout."""
        sent: dict[int, int] = {}
        for number in numbers:
            dice = self.die(number)
            if number % 100 == 0:
                self.world.revive()
            if dice.random() < 0.02:
                method = dice.choice(("mcpd/reconnect", "mcpd/ping", "mcpd/tools", "mcpd/server"))
                sent[self._client.send(method, server=self.server)] = number
            call = {"server": self.server, "tool": "case", "arguments": {"case": number}}
            more: Json = {"_meta": {"progressToken": 1}} if dice.random() < 0.3 else {}
            raw = dice.random() < 0.5
            sent[self._client.send("mcpd/call", **call, timeout=0.3, raw=raw, **more)] = number
        for key, number in sent.items():
            try:
                self._client.answer(key)
            except Refused as refused:
                if "an error in mcpd itself" in refused.body["message"]:
                    raise wrong(number, str(refused)) from None
            except (OSError, EOFError, ValueError) as error:
                self.close()
                raise wrong(number, f"no answer: {error!r}") from error
        self._client.notifications.clear()

    def close(self) -> None:
        if self._connected is not None:
            self._connected.close()
        self._connected = None


class Web(Server):
    """The same with a remote server."""

    name = "http-server"
    server = "web"
    batch = 20


class WebSockets(Server):
    """The same with a server that is reached over WebSocket."""

    name = "websocket"
    server = "websocket"


KEPT = {
    *("state.json", "history.jsonl", "calls.jsonl", "calm.log", "last-valid-config.json"),
    *("logins.json", "secrets.json"),
}
"""The files that a daemon reads again, in addition to its configuration and the lists of its servers."""
REMOTE: Json = {"url": "http://127.0.0.1:9/mcp"}


class Files(Target):
    """Damage to all files of a daemon at once, and then a start."""

    name = "files"
    batch = 1
    counts_cpu = False

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._home = world.daemon.home / "another"
        self._whole: dict[Path, bytes] = {}

    def send(self, number: int) -> None:
        if not self._whole:
            self._prepare()
        dice = self.die(number)
        for path, data in self._whole.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(corrupt(data, dice) if dice.random() < 0.8 else data)
        (self._home / "daemon.log").unlink(missing_ok=True)
        broken = {"broken": {"command": 5}} if number % 2 else {}  # so that the last valid one is read
        with running(self._home, {"calm": fake(), "remote": REMOTE, **broken}) as daemon:
            daemon.wait_connected("calm")
            with daemon.client() as client:
                for method in (
                    "status",
                    "history",
                    "config",
                    "tools",
                    "stats",
                    "clients",
                    "calls",
                    "auth/status",
                ):
                    client.request(f"mcpd/{method}")
                if client.call("calm", "echo", {"n": number})["output"] != f'{{"n": {number}}}':
                    raise Wrong("a wrong answer")
        if "Traceback" in daemon.log:
            raise Wrong(daemon.log[-3000:])

    def _prepare(self) -> None:
        shutil.rmtree(self._home, ignore_errors=True)
        self._home.mkdir()
        secrets = self._home / "config" / "mcpd" / "secrets.json"
        secrets.parent.mkdir(parents=True)
        secrets.write_text('{"A": "a secret value"}')
        secrets.chmod(0o600)
        servers = {"calm": fake(), "needy": fake(env={"A": "${secret:A}"}), "more": fake()}
        store = TokenStore(self._home / "state" / "mcpd")
        store.open()
        login = attrs.evolve(LOGIN, resource=REMOTE["url"])
        store.change(lambda logins: logins.with_login(login, REMOTE["url"]))
        store.close()
        with running(self._home, servers) as daemon:
            daemon.wait_connected(*servers)
            daemon.client().call("calm", "stderr", {"text": "a line"})
            daemon.client().request("mcpd/disable", server="more")
        places = [self._home / name for name in ("state", "cache", "config")]
        files = [path for place in places for path in place.rglob("*") if path.is_file()]
        self._whole = {path: path.read_bytes() for path in files if path.name != "lock"}
        missing = KEPT - {path.name for path in self._whole}
        if missing or not any(path.parent.name == "lists" for path in self._whole):
            raise Wrong(f"the daemon has written no {missing or 'lists'}")
