"""`mcpctl --url`: the control API of an mcpd that is reached over TLS, with mcpd's own token."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import attrs
import httpx
import pytest

from mcpd.api.control.access import ADMINISTRATOR, PERSON
from mcpd.api.control.methods import METHODS
from tests.e2e.harness import BOUND, Daemon, fake, in_flight, running, wait_until
from tests.e2e.issuer import Issuer
from tests.e2e.test_http_network import client, issuer, make_certificate  # noqa: F401 # a fixture

HANDSHAKE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Protocol": "mcpd.control",
}


@attrs.frozen
class Elsewhere:
    """A daemon, and mcpctl on another machine."""

    daemon: Daemon
    url: str
    token_file: str

    def command(self, *argv: str) -> tuple[list[str], dict[str, str]]:
        certificate = str(self.daemon.home / "cert.pem")
        env = {**self.daemon.environ, "SSL_CERT_FILE": certificate, "MCPD_TOKEN_FILE": self.token_file}
        env["MCPD_SOCKET"] = "/nowhere"
        return [sys.executable, "-m", "ctl", "--url", self.url, *argv], env

    def mcpctl(self, *argv: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        command, env = self.command(*argv)
        return subprocess.run(command, env=env, input=stdin, capture_output=True, text=True, timeout=BOUND)


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory, issuer: Issuer) -> Iterator[Elsewhere]:  # noqa: F811
    home = tmp_path_factory.mktemp("daemon")
    http = {
        "listen": "127.0.0.1:0",
        "tls": make_certificate(home),
        "jwt": {"issuer": issuer.url, "audience": "https://localhost/mcp"},
        "profiles": {"staff": "small"},
    }
    settings = {
        "http": http,
        "profiles": {"small": {"servers": ["one", "own"]}},
        "policies": [{"decision": "deny", "people": ["mallory"], "tools": ["echo"]}],
    }
    servers = {"one": fake(), "two": fake(), "own": fake(share="person")}
    with running(home, servers, settings=settings) as daemon:
        daemon.wait_connected("one", "two")
        with client(daemon) as reached:
            wait_until(lambda: reached.get("/readyz").status_code == 200, lambda: daemon.log)
            url = str(reached.base_url).rstrip("/")
        yield Elsewhere(daemon, url, str(home / "state" / "mcpd" / "http-token"))


def test_commands_work_as_on_one_machine(elsewhere: Elsewhere) -> None:
    daemon = elsewhere.daemon
    assert json.loads(elsewhere.mcpctl("--json", "status").stdout)["daemon"]["pid"] == daemon.pid
    called = elsewhere.mcpctl("call", "echo@one", "--args", '{"text": "ä\\n\\u2028"}')
    assert (called.returncode, called.stderr) == (0, "")
    assert called.stdout == daemon.mcpctl("call", "echo@one", "--args", '{"text": "ä\\n\\u2028"}').stdout
    big = elsewhere.mcpctl("call", "echo@one", "--args", "-", stdin=json.dumps({"text": "x" * 3_000_000}))
    assert big.stdout.count("x") >= 3_000_000
    for command in ("list-tools", "logs one", "why one", "history", "reconnect one", "config show", "top"):
        ended = elsewhere.mcpctl(*command.split())
        assert (ended.returncode, "error" in ended.stderr) == (0, False), command
    watching, env = elsewhere.command("events", "--json")
    with subprocess.Popen(watching, env=env, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["kind"]
        process.send_signal(signal.SIGINT)
        assert process.wait(BOUND) == 130


def test_what_starts_programs_or_edits_files_is_refused(elsewhere: Elsewhere) -> None:
    before = elsewhere.daemon.config.read_text()
    for command in (
        "add two -- touch /tmp/owned",
        "remove one",
        "try -- touch /tmp/owned",
        "shutdown",
        "ui --print",
        "edit",
        "secret list",
        "daemon stop",
        "doctor",
        "bridge",
    ):
        ended = elsewhere.mcpctl(*command.split())
        assert ended.returncode in (1, 2), (command, ended)
        assert "on the machine" in ended.stderr or "--url" in ended.stderr, command
    assert elsewhere.daemon.config.read_text() == before


def test_each_method_is_served_or_left_out_on_purpose() -> None:
    """A new method belongs into `ADMINISTRATOR`, unless it starts programs or edits files."""
    assert METHODS.keys() - ADMINISTRATOR.methods == {
        *("mcpd/add", "mcpd/edit", "mcpd/remove", "mcpd/servers/set"),
        *("mcpd/shutdown", "mcpd/upgrade"),
        *("mcpd/attach", "mcpd/identify"),  # they change the connection
        "mcpd/config/check",  # it reads files of mcpd's machine
        "mcpd/page",
    }
    assert METHODS.keys() >= ADMINISTRATOR.methods > PERSON.methods


def test_request_that_did_not_end_may_have_run(elsewhere: Elsewhere, tmp_path: Path) -> None:
    """The connection breaks as if the network did: without an answer, and without a word."""
    command, env = elsewhere.command("--json", "call", "drop@one")
    with subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True) as process:
        in_flight(elsewhere.daemon, "one", 1)
        with elsewhere.daemon.client() as control:
            control.request("mcpd/reconnect", server="one")
        assert process.stderr is not None
        assert json.loads(process.stderr.read())["error"]["may_have_run"] is True
    elsewhere.daemon.wait_connected("one")


@pytest.mark.parametrize(
    ("url", "token", "exit_code", "said"),
    [
        ("", "x" * 43, 3, "HTTP 401"),
        ("", "", 2, "contains no token"),
        ("https://127.0.0.1:1", "x" * 43, 3, "Connection refused"),
        ("http://mcp.example.com", "x" * 43, 2, "readable on the network"),
        ("https://ada:secret@localhost", "x" * 43, 2, "not the URL"),
        ("https://localhost/mcp", "x" * 43, 2, "not the URL"),
    ],
)
def test_other_url_or_token_is_refused(
    elsewhere: Elsewhere, tmp_path: Path, url: str, token: str, exit_code: int, said: str
) -> None:
    (tmp_path / "token").write_text(token)
    other = attrs.evolve(elsewhere, url=url or elsewhere.url, token_file=str(tmp_path / "token"))
    ended = other.mcpctl("status")
    assert ended.returncode == exit_code, ended
    assert said in ended.stderr
    assert not token or token not in ended.stdout + ended.stderr + elsewhere.daemon.log


def test_unknown_certificate_is_refused(elsewhere: Elsewhere) -> None:
    command, env = elsewhere.command("status")
    ended = subprocess.run(
        command, env={**env, "SSL_CERT_FILE": os.devnull}, capture_output=True, text=True, timeout=BOUND
    )
    assert ended.returncode == 3
    assert "is not trusted" in ended.stderr


def test_only_mcpctl_with_the_token_opens_the_socket(elsewhere: Elsewhere, issuer: Issuer) -> None:  # noqa: F811
    """A browser can send neither this token nor leave out Origin."""
    own = Path(elsewhere.token_file).read_text().strip()
    wrong = [
        (issuer.token(groups=["others"]), {}, 403),
        (issuer.token(groups=["staff"], exp=1), {}, 401),
        ("", {}, 401),
        (own, {"Origin": elsewhere.url}, 426),
        (own, {"Origin": "https://evil.example"}, 403),
        (own, {"Host": "evil.example"}, 403),
        (own, {"Sec-WebSocket-Protocol": "mcpd.page"}, 426),
        (own, {"Sec-WebSocket-Key": "short"}, 426),
    ]
    for token, headers, status in wrong:
        with client(elsewhere.daemon, token, **{**HANDSHAKE, **headers}) as http:
            answer: httpx.Response = http.get("/rpc")
            assert answer.status_code == status, headers


def test_person_can_do_what_mcp_clients_of_that_person_can(
    elsewhere: Elsewhere,
    issuer: Issuer,  # noqa: F811
    tmp_path: Path,
) -> None:
    people = {}
    for name in ("ada", "bob", "mallory"):
        (tmp_path / name).write_text(issuer.token(name, groups=["staff"]))
        people[name] = attrs.evolve(elsewhere, token_file=str(tmp_path / name))
    ada = people["ada"]
    listed = json.loads(ada.mcpctl("--json", "list-tools").stdout)["tools"]
    assert {tool["server"] for tool in listed} <= {"one", "own"}
    for command, code in (
        ("call echo@one text=x", 0),
        ("call echo@two text=x", 5),
        ("list-tools one", 0),
        ("list-tools two", 5),
        ("prompts one", 0),
        ("status", 1),
        ("reconnect one", 1),
        ("logs one", 1),
        ("calls", 1),
    ):
        assert ada.mcpctl(*command.split()).returncode == code, command
    refused = people["mallory"].mcpctl("call", "echo@one", "text=x")
    assert "denies it" in refused.stderr
    pids = [each.mcpctl("call", "pid@own").stdout for each in (ada, people["bob"], ada)]
    assert pids[0] == pids[2] != pids[1]
    wanted = {("ada", "one", "ok"), ("mallory", "one", "denied"), ("bob", "own", "ok")}

    def logged() -> set[tuple[str, str, str]]:
        with elsewhere.daemon.client() as control:
            calls = control.request("mcpd/calls")["calls"]
        return {(call.get("person", ""), call["server"].partition("~")[0], call["outcome"]) for call in calls}

    wait_until(lambda: wanted <= logged(), lambda: str(logged()))


def test_connection_ends_with_the_access_token(
    elsewhere: Elsewhere,
    issuer: Issuer,  # noqa: F811
    tmp_path: Path,
) -> None:
    (tmp_path / "token").write_text(issuer.token(groups=["staff"], exp=int(time.time()) + 5))
    short = attrs.evolve(elsewhere, token_file=str(tmp_path / "token"))
    ended = short.mcpctl("--json", "call", "drop@one")
    error = json.loads(ended.stderr)["error"]
    assert (ended.returncode, error["may_have_run"]) == (3, True)
    assert "the access token has expired" in error["message"]
    in_flight(elsewhere.daemon, "one", 0)
