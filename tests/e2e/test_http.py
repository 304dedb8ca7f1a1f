"""The daemon over HTTP: a port with a token and the Unix socket serve programs, and refuse web pages."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

from tests.e2e import web
from tests.e2e.conftest import Start
from tests.e2e.harness import BOUND, Json, fake, in_flight, private_environment, wait_until
from tests.e2e.web import PORT, events, http_endpoint, over_unix, request


def test_port_is_published_in_status_log_and_file(start: Start) -> None:
    """Port 0 selects a free port. The status, the log and a file name it and the path of the token."""
    daemon = start({"one": fake()}, *PORT)
    where = http_endpoint(daemon)
    file = Path(daemon.socket).parent / "http.json"
    received: Json = json.loads(file.read_text())
    assert received["url"] == f"{where.base}/mcp"
    assert received["pid"] == daemon.pid
    assert stat.S_IMODE(Path(received["token_file"]).stat().st_mode) == 0o600
    wait_until(lambda: f"{where.base}/mcp" in daemon.log, lambda: daemon.log)
    assert where.token not in daemon.log
    assert web.get(f"{where.base}/health").json() == {"status": "ok"}
    assert daemon.stop() == 0
    assert not file.exists()


def test_unix_socket_serves_http_without_a_port(start: Start) -> None:
    """The first byte decides: a letter starts HTTP, anything else starts JSON lines on the same socket."""
    daemon = start()
    with daemon.client() as lines, over_unix(daemon) as http:
        assert lines.request("mcpd/status")["daemon"]["http"] is None
        assert http.get("/health").json() == {"status": "ok"}
        assert http.get("/nowhere").status_code == 404
        assert http.get("/health", headers={"Origin": "http://evil.example"}).status_code == 403
        assert lines.request("mcpd/version")["pid"] == daemon.pid
    with daemon.client() as client:
        client.send_raw(b"hello")
        assert json.loads(client.read_line())["error"]["code"] == -32700


def test_daemon_runs_without_http_if_the_configured_port_is_in_use(start: Start) -> None:
    """The socket still works, and the status reports the error of the port."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        daemon = start({"one": fake()}, settings={"http": address})
        daemon.wait_connected("one")
        status = daemon.client().request("mcpd/status")
    assert status["daemon"]["http"] is None
    assert any(
        f"cannot listen on {address} for HTTP: Address already in use" in w
        for w in status["config"]["warnings"]
    )
    pid = daemon.status("one")["pid"]
    daemon.client().request("mcpd/reload")  # the other program has ended
    where = daemon.client().request("mcpd/status")["daemon"]["http"]["url"]
    assert where == f"http://{address}/mcp"
    assert web.get(f"http://{address}/health").json() == {"status": "ok"}
    assert daemon.status("one")["pid"] == pid
    assert daemon.client().request("mcpd/status")["config"]["warnings"] == []


def test_daemon_exits_if_the_port_of_the_command_line_is_in_use(tmp_path: Path) -> None:
    """A user who passes `--http` sees the error immediately."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        argv = [sys.executable, "-m", "mcpd", "--http", address]
        environ = private_environment(tmp_path)
        ended = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=BOUND, check=False)
    assert ended.returncode == 78
    assert f"cannot listen on {address} for HTTP: Address already in use; choose another port" in ended.stderr


def test_missing_token_error_says_where_the_token_is(start: Start) -> None:
    """The error must not start an OAuth login."""
    where = http_endpoint(start({}, *PORT))
    refused = web.post(f"{where.base}/mcp", json={})
    assert refused.status_code == 401
    assert refused.headers["www-authenticate"] == 'Bearer realm="mcpd"'
    assert "mcpctl status" in refused.text
    assert web.get(f"{where.base}/.well-known/oauth-protected-resource").status_code == 404
    assert not [name for name in refused.headers if name.startswith("access-control")]


def test_control_api_is_served_by_post_on_the_unix_socket(start: Start) -> None:
    """All methods work, streaming ones as events; the connection accepts further requests, also bad ones."""
    daemon = start({"one": fake()})
    daemon.wait_connected("one")
    with over_unix(daemon) as http:
        answer = http.post("/rpc", json=request("mcpd/status", "two")).json()
        assert (answer["id"], answer["result"]["daemon"]["pid"]) == ("two", daemon.pid)
        pretty = json.dumps(request("mcpd/call", server="one", tool="echo", arguments={"n": 1}), indent=2)
        assert http.post("/rpc", content=pretty).json()["result"]["output"] == '{"n": 1}'
        failed = http.post("/rpc", json=request("mcpd/call", server="nope", tool="x")).json()
        assert failed["error"]["data"]["code"] == "unknown_server"
        with http.stream("POST", "/rpc", json=request("mcpd/events")) as stream:
            assert stream.headers["content-type"] == "text/event-stream"
            first = json.loads(next(events(stream.iter_raw())).data)
            assert first["params"]["event"]["server"] == "one"
    with over_unix(daemon) as http:
        for body in (b"{", b'{"id":1}', b'{"method":"mcpd/status"}'):
            assert http.post("/rpc", content=body).status_code == 400
        for other in ("tools/list", "mcpd/attach", "mcpd/identify"):
            assert http.post("/rpc", json=request(other)).status_code == 404
        assert http.get("/rpc").status_code == 405


def test_client_that_leaves_cancels_its_control_request(start: Start) -> None:
    daemon = start({"one": fake()})
    daemon.wait_connected("one")
    with socket.socket(socket.AF_UNIX) as caller:
        caller.connect(daemon.socket)
        web.send(caller, "/rpc", request("mcpd/call", server="one", tool="drop"), {"Host": "localhost"})
        in_flight(daemon, "one", 1)
    in_flight(daemon, "one", 0)


def test_port_has_no_control_api_even_with_the_token(start: Start) -> None:
    """A stolen token must not be enough to start programs."""
    with http_endpoint(start({}, *PORT)).client() as http:
        assert http.post("/rpc", json=request("mcpd/status")).status_code == 404
        for path in ("/mcp/../rpc", "/%72pc", "//rpc", "/rpc/", "/rpc?x"):
            refused = http.post(path, json=request("mcpd/status")).status_code
            assert refused in (404, 405, 413), path  # 413: a path for everybody, which takes no body
        inside = http.post("/mcp", json=request("mcpd/status"))
        assert inside.status_code == 400


def test_missing_authentication_is_a_warning_in_log_and_status(start: Start) -> None:
    daemon = start({}, *PORT, "--http-auth", "none")
    with daemon.client() as client:
        received = client.request("mcpd/status")["daemon"]["http"]
    assert received["auth"] == "none"
    assert received["token_file"] is None
    wait_until(lambda: "--http-auth none" in daemon.log, lambda: daemon.log)
    assert '"level": "warning"' in daemon.log
    status = web.post(received["url"], headers={"Origin": "http://evil.example"}, json={}).status_code
    assert status == 403


def test_address_for_other_machines_needs_more(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "mcpd", "--http", "0.0.0.0:0"],
        env=private_environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=BOUND,
    )
    assert ended.returncode == 2
    assert "settings.http.tls" in ended.stderr
    assert "127.0.0.1" in ended.stderr


def test_a_port_that_systemd_opened_is_served(tmp_path: Path) -> None:
    """`ListenStream=127.0.0.1:8931` in a socket unit, in addition to the path of the socket."""
    environ = private_environment(tmp_path)
    unix = tmp_path / "run" / "mcpd" / "mcpd.sock"
    unix.parent.mkdir(mode=0o700)
    with socket.create_server(("127.0.0.1", 0)) as port, socket.socket(socket.AF_UNIX) as lines:
        lines.bind(str(unix))
        lines.listen()
        code = (
            "import os, sys; os.dup2(int(sys.argv[1]), 10); os.dup2(int(sys.argv[2]), 11);"
            "os.dup2(10, 3); os.dup2(11, 4); os.environ['LISTEN_PID'] = str(os.getpid());"
            "os.execv(sys.executable, [sys.executable, '-m', 'mcpd'])"
        )
        with (tmp_path / "log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-c", code, str(lines.fileno()), str(port.fileno())],
                env={**environ, "LISTEN_FDS": "2", "LISTEN_FDNAMES": "mcpd:http"},
                pass_fds=(lines.fileno(), port.fileno()),
                stdout=log,
                stderr=log,
            )
        try:
            url = f"http://127.0.0.1:{port.getsockname()[1]}/health"
            assert web.get(url).json() == {"status": "ok"}
        finally:
            process.terminate()
            assert process.wait(BOUND) == 0
    assert os.path.exists(unix)
