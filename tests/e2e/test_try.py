"""`mcpctl try`: a server that is not in the configuration, for the time of one command."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from tests.e2e.conftest import Start
from tests.e2e.harness import Daemon, fake
from tests.example_server import TEST_SERVER

COMMAND = [fake()["command"], *fake()["args"]]


def mcpctl(daemon: Daemon, *words: str) -> subprocess.CompletedProcess[str]:
    done = daemon.mcpctl(*words)
    with daemon.client() as client:
        status = client.request("mcpd/status")
        assert status["servers"] == [], "it is gone afterwards"
        assert status["config"]["source"] == str(daemon.config), "the file is in effect"
    return done


def test_server_is_tried_without_being_added(start: Start) -> None:
    """Its tools are listed or called; neither the set nor the file keeps it."""
    daemon = start({})
    listed = mcpctl(daemon, "try", "--", *COMMAND)
    assert (listed.returncode, listed.stderr) == (0, "")
    assert "echo" in [line.split()[0] for line in listed.stdout.splitlines()]
    assert "try-" not in listed.stdout
    called = mcpctl(daemon, "try", "--json", "--", *COMMAND, "--", "echo", "text=hello")
    assert (called.returncode, json.loads(called.stdout)["success"]) == (0, True), called.stderr
    assert "hello" in called.stdout
    with daemon.client() as client:
        (call,) = client.request("mcpd/calls")["calls"]
    assert (call["server"], call["name"]) == (shlex.join(COMMAND), "echo"), "nobody knows its name"
    refused = mcpctl(daemon, "try", "--", sys.executable, TEST_SERVER, "--", "add", "a=x")
    assert refused.stderr.startswith("error: add was not called: its arguments violate the tool's schema")
    with daemon.client() as client:
        (_, call) = client.request("mcpd/calls")["calls"]
    assert call["message"].startswith("add was not called: "), call
    wrong = mcpctl(daemon, "try", "--json", "--", *COMMAND, "--", "ecko")
    error = json.loads(wrong.stderr)["error"]
    assert (wrong.returncode, error["code"], error["next"]) == (5, "unknown_tool", "did you mean echo?")
    assert (error["may_have_run"], error["server"]) == (False, shlex.join(COMMAND))


class Refusing(BaseHTTPRequestHandler):
    """Requires a login for everything."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(401)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_GET(self) -> None:
        self.send_error(401)

    def log_message(self, *_: object) -> None: ...


def test_tried_server_that_needs_a_login_is_added_first(start: Start) -> None:
    """No other command knows the server of `try`, so none is advised for it."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            url = f"http://127.0.0.1:{server.server_port}/mcp"
            done = mcpctl(start({}), "try", url, "--json")
        finally:
            server.shutdown()
    error = json.loads(done.stderr)["error"]
    assert error["message"].startswith("the server needs a login: HTTP 401")
    assert "mcpctl" not in error["message"]
    assert "definition" not in error["message"], "it has none"
    assert error["next"].startswith(f"mcpctl add NAME {url} && mcpctl login NAME")
    assert (done.returncode, error["exit"], error["state"]) == (4, 4, "needs-auth")
    assert (error["may_have_run"], error["server"]) == (False, url)
