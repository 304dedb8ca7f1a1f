"""Secrets are planted everywhere they can occur, and must not appear in anything mcpd shows or stores."""

from __future__ import annotations

import json
import os
import re
import stat
import sys
import tarfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote, unquote

import pytest
from wsproto.events import TextMessage

from mcpd.config.secret_store import change_secrets
from mcpd.supervision.managed_server import ManagedServer
from tests.dashboard.visitor import log_in, socket_of
from tests.e2e import web
from tests.e2e.conftest import Start
from tests.e2e.harness import (
    Client,
    Daemon,
    Json,
    Refused,
    fake,
    private_environment,
    wait_until,
)
from tests.interop.test_opentelemetry import FAST, collector
from tests.spelled import every_spelling, is_shown_in

PLACES = (
    "stored",
    "file",
    "command",
    "env",
    "argument",
    "header",
    "query",
    "user",
    "variable",
    "quoted",
    "odd",
    "repeated",
    "dsn",
)
CANARY = {where: f"kanarie-{where}-{number}x{number}" for number, where in enumerate(PLACES, 1234)}
CANARY["quoted"] += '-"ä/+'
"""One that JSON and URLs spell otherwise."""
CANARY["repeated"] = "abcabcabcabcabcabc"
"""It overlaps with itself when it is written twice."""
CANARY["odd"] += "-pässwörd'\"\\-1234567"
"""A value that cannot be sent in a header, which libraries show in their errors."""
EVERYTHING = " ".join(every_spelling(secret) for secret in CANARY.values()) + CANARY["repeated"] * 3
TELLTALE = Path(__file__).parent.parent / "servers" / "telltale.py"

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
BUG = """
import os
from mcpd.supervision.managed_server import ManagedServer
sound = ManagedServer.{method}
def broken(self, *given):
    if self.spec.name == "told" and os.path.exists({flag!r}):
        os.unlink({flag!r})
        raise ZeroDivisionError("injected: " + {secret!r})
    return sound(self, *given)
ManagedServer.{method} = broken
"""


def servers(home: Path) -> Json:
    """Define servers with some of the secrets each; the first prints all of its secrets on stderr."""
    argument, query = CANARY["argument"], f"token={CANARY['query']}&key={quote(CANARY['quoted'], safe='')}"
    last_words = f"echo {argument} {CANARY['env']} >&2; exit 3"
    return {
        "told": fake(
            *("--at", "ready", "stderr", json.dumps({"text": f"I was given {EVERYTHING}"})),
            env={
                "STORED": "${secret:STORED}",
                "FILE": f"${{file:{home / 'secret-file'}}}",
                "COMMAND": f"${{cmd:cat {home / 'command-file'}}}",
                "API_TOKEN": CANARY["env"],
                "VARIABLE": "${env:TAKEN}",
                "QUOTED": "${secret:QUOTED}",
                "ODD": "${secret:ODD}",
            },
        ),
        "telltale": telltale("telltale"),
        "refusing": telltale("refusing", "--refuse"),
        "dsn": fake(f"--record=postgres://ann:{CANARY['dsn']}@db/x?key={CANARY['dsn']}", "--never"),
        "odd": {"url": "http://127.0.0.1:9/mcp", "headers": {"Authorization": "Bearer ${secret:ODD}"}},
        "odd-url": {"url": "http://127.0.0.1:9/mcp?token=${secret:ODD}"},
        "odd-command": {"command": "/nonexistent/${secret:ODD}"},
        "dying": {"command": "/bin/sh", "args": ["-c", last_words, "--api-key", argument]},
        "far": {
            "url": f"http://ann:{CANARY['user']}@127.0.0.1:9/mcp?{query}",
            "headers": {"Authorization": f"Bearer {CANARY['header']}", "X-Api-Key": "${secret:STORED}"},
        },
    }


def telltale(name: str, *flags: str) -> Json:
    secrets = {
        "NAME": "${secret:STORED}",
        "SECRETS": " ".join(f"${{secret:{name}}}" for name in ("STORED", "QUOTED", "ODD"))
        + "${secret:REPEATED}" * 3,
    }
    return {"command": sys.executable, "args": ["-I", "-S", str(TELLTALE), *flags], "env": secrets}


class Repeating(BaseHTTPRequestHandler):
    """Refuses every request in the way that its path names, and repeats all of it."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        got = " ".join(
            (self.path, *self.headers.values(), *re.findall(r"kanarie-[^ &]*", unquote(self.path)))
        )
        way = self.path[1:4]
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "error": {"code": -32000, "message": got, "data": got}})
        self.send_response(int(way))
        self.send_header("Content-Type", "application/json" if way == "200" else "text/plain")
        self.send_header("Location", f"http://127.0.0.1:9/{got.replace(' ', '&')}")
        self.send_header("WWW-Authenticate", f'Bearer error="invalid_token", error_description="{got}"')
        self.send_header("Mcp-Session-Id", got)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    do_GET = do_DELETE = do_POST

    def log_message(self, format: str, *args: object) -> None: ...


@contextmanager
def repeating() -> Iterator[Json]:
    """Serve on a free port; yield definitions of servers there with secrets."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Repeating) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        where = f"127.0.0.1:{server.server_address[1]}"
        yield {
            f"http-{way}": {
                "url": f"http://ann:{CANARY['user']}@{where}/{way}?token={CANARY['query']}",
                "headers": {"X-Api-Key": CANARY["header"], "Cookie": f"id={CANARY['repeated']}"},
            }
            for way in ("200", "302", "307", "400", "401", "403", "404", "500", "503")
        }
        server.shutdown()


def be_told(daemon: Daemon) -> None:
    """Use the server whose names are secrets, as a client whose name is one."""
    secret = CANARY["stored"]
    ask = partial(request_anything, daemon.client(), CANARY["header"])
    for method, params in (
        ("tools/call", {"name": secret, "arguments": {"a": EVERYTHING}, "_meta": {"progressToken": secret}}),
        ("tools/call", {"name": secret * 2, "arguments": {}}),
        ("resources/read", {"uri": f"db://ann:{secret}@host/table?key={secret}"}),
        ("resources/read", {"uri": CANARY["repeated"] * 2}),
        ("prompts/get", {"name": secret}),
        (
            "completion/complete",
            {"ref": {"type": "ref/prompt", "name": secret}, "argument": {"name": secret, "value": secret}},
        ),
        (secret, {}),
    ):
        ask(method, params)


def request_anything(client: Client, name: str, method: str, params: Json) -> None:
    """Send it as a client of that name. Errors are right."""
    own = web.meta(**{f"{web.P}clientInfo": {"name": name, "title": name, "version": name}})
    given = {
        **params,
        "_meta": {**own, "traceparent": TRACE, "tracestate": f"a={name}", **params.get("_meta", {})},
    }
    with suppress(Refused):
        client.request("mcpd/attach", server="telltale", client={"name": name, "cwd": f"/{name}"})
    body = {"jsonrpc": "2.0", "id": f"{name}-{method}", "method": method, "params": given}
    client.send_raw(json.dumps(body).encode())
    with suppress(Refused):
        client.answer(body["id"])
    for control, more in (("call", {"tool": name, "arguments": params}), ("read", {"uri": f"x://{name}"})):
        with suppress(Refused):
            client.request(f"mcpd/{control}", server="telltale", **more)
        with suppress(Refused):
            client.request(f"mcpd/{control}", server=name, **more)


def found_in(text: str | bytes) -> set[str]:
    """Return the canaries in the text, in any encoding."""
    data = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
    return {where for where, secret in CANARY.items() if is_shown_in(data, secret)}


def mcpctl(daemon: Daemon, *argv: str) -> str:
    done = daemon.mcpctl(*argv)
    return done.stdout + done.stderr


COMMANDS = (
    *("status", "status --json", "status told", "status dying --json", "status far --json"),
    *("why odd", "why odd-url --json", "why odd-command", "status odd --json"),
    *("why told", "why dying", "why far", "why dying --json", "history", "history --json", "logs told"),
    *("logs dying", "stats --json", "clients --json", "config show", "config show --json"),
    *("doctor --no-shell", "secret list", "secret list --json"),
    *("status telltale --json", "status telltale", "status refusing --json", "why telltale", "why refusing"),
    *("calls", "calls --json", "why dsn", "stats", "clients", "approvals --json", "logs telltale"),
)


@contextmanager
def followed(daemon: Daemon) -> Iterator[list[str]]:
    """Follow the events, a log and a server's messages; the result is complete after the block."""
    heard: list[str] = []
    with daemon.client() as client:
        client.send("mcpd/events")
        client.send("mcpd/logs", server="told", follow=True)
        client.send("mcpd/tap", server="told")
        client.send("mcpd/tap", server="telltale")
        client.send("mcpd/calls", follow=True)
        client.request("mcpd/version")
        yield heard
        daemon.client().call("told", "stderr", {"text": "the end of it"})
        while not any("the end of it" in line for line in heard):
            heard.append(client.read_line().decode())
        heard += [json.dumps(each) for each in client.notifications]


@pytest.fixture
def collecting() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.mark.slow
def test_no_secret_is_shown_or_kept_anywhere(start: Start, tmp_path: Path, collecting: ExitStack) -> None:
    """At DEBUG level: headers, variables, arguments, URLs, bodies, error texts, stderr, a traceback."""
    change_secrets(
        private_environment(tmp_path),
        {name.upper(): CANARY[name] for name in ("stored", "quoted", "odd", "repeated")},
    )
    (tmp_path / "command-file").write_text(CANARY["command"])
    (tmp_path / "secret-file").write_text(CANARY["file"])
    flag = tmp_path / "flag"
    (tmp_path / "sitecustomize.py").write_text(
        BUG.format(method=ManagedServer._wait_while_off.__name__, flag=str(flag), secret=CANARY["stored"])
    )
    path = f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"
    there = collecting.enter_context(collector())
    remote = collecting.enter_context(repeating())
    daemon = start(
        {**servers(tmp_path), **remote},
        "--debug",
        *web.PORT,
        settings={"allowCommands": True, "callLog": "contents", "openTelemetry": there.url},
        environ={"TAKEN": CANARY["variable"], "PYTHONPATH": path, **FAST},
    )
    daemon.wait_connected("told", "telltale")
    for name in ("dying", "far", "odd", "odd-url", "odd-command", "dsn", "refusing", *remote):
        daemon.wait_status(name, lambda status: status["last_error"] is not None)
    error = daemon.status("odd")["last_error"]
    assert error["kind"] == "secret"
    assert "not ASCII" in error["message"]
    shown: dict[str, str | bytes] = {}
    visitor, client = log_in(daemon), daemon.client()
    with followed(daemon) as heard:
        client.call("told", "stderr", {"text": EVERYTHING})
        client.call("told", "junk", {"lines": 3})
        client.call("told", "echo", {"body": EVERYTHING})
        for words in ("error", "fail"):
            with suppress(Refused):
                client.call("told", words, {"message": EVERYTHING, "data": EVERYTHING})
        log = {"method": "notifications/message", "params": {"level": "error", "data": EVERYTHING}}
        client.call("told", "notify", log)
        be_told(daemon)
        flag.touch()
        client.request("mcpd/disable", server="told")
        wait_until(lambda: "injected" in daemon.log, lambda: daemon.log)
        client.request("mcpd/enable", server="told")
        daemon.wait_connected("told")
    shown["events, logs and tap"] = "\n".join(heard)
    with socket_of(visitor) as page:
        events = {"jsonrpc": "2.0", "id": 0, "method": "mcpd/events", "params": {}}
        page.send(TextMessage(data=json.dumps(events)))
        for method in ("status", "config", "history", "clients", "stats"):
            shown[f"page {method}"] = json.dumps(page.ask(f"mcpd/{method}"))
        shown["page calls"] = json.dumps(page.ask("mcpd/calls"))
        for name in ("told", "dying", "far", "telltale", "refusing", *remote):
            shown[f"page {name}"] = json.dumps(page.ask("mcpd/server", server=name))
        assert page.received
        shown["page events"] = json.dumps(page.received)
    shown |= {command: mcpctl(daemon, *command.split()) for command in COMMANDS}
    with web.http_endpoint(daemon).client() as http:
        shown["/metrics"] = http.get("/metrics").text
    bundle = tmp_path / "report.tar.gz"
    mcpctl(daemon, "doctor", "--no-shell", "--bundle", str(bundle))
    with tarfile.open(bundle) as tar:
        for member in tar.getmembers():
            file = tar.extractfile(member)
            shown[f"bundle {member.name}"] = b"" if file is None else file.read()
    guardian = daemon.guardian()
    for pid in (daemon.pid, guardian):
        shown[f"command line of {pid}"] = Path(f"/proc/{pid}/cmdline").read_bytes()
    shown["the guardian's environment"] = Path(f"/proc/{guardian}/environ").read_bytes()
    daemon.stop()
    shown["spans"] = "".join(map(str, there.received.queue))
    assert "telltale" in shown["spans"]
    assert "Traceback" in daemon.log
    shown["the log at DEBUG"] = daemon.log
    for kept in (path for place in ("state", "cache", "run") for path in (tmp_path / place).rglob("*")):
        if kept.name == "last-valid-config.json":  # a copy of the configuration file, as it was written
            assert stat.S_IMODE(kept.stat().st_mode) == 0o600
            text = json.loads(kept.read_text())["text"]
            assert json.loads(text)["mcpServers"]["told"]["env"]["STORED"] == "${secret:STORED}"
        elif kept.is_file() and kept.parent.name != "lists":  # the names that clients use
            shown[str(kept.relative_to(tmp_path))] = kept.read_bytes()
    leaks = {where: sorted(found) for where, text in shown.items() if (found := found_in(text))}
    assert leaks == {}, json.dumps(leaks)
