"""Secrets of a real daemon: resolved at each start, an error for one server only, and never shown."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mcpd.config.secret_store import change_secrets
from tests.e2e.conftest import Start
from tests.e2e.harness import BOUND, Daemon, Json, fake, private_environment, running, wait_until
from tests.processes import gone

ALLOWED = {"allowCommands": True}


def environment_of(daemon: Daemon, server: str) -> dict[str, str]:
    """Return the environment of the server's process."""
    pid = daemon.status(server)["pid"]
    pairs = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return dict(pair.decode().split("=", 1) for pair in pairs if b"=" in pair)


def explained(daemon: Daemon, server: str) -> tuple[str, str]:
    """Return why nobody can rely on a server, and what to do, as `status`, `why` and `doctor` show it."""
    detail = daemon.client().request("mcpd/server", server=server)
    return detail["server"]["degraded"], detail["next"]


def with_secrets(**values: str) -> Json:
    return fake(env=values)


def test_server_gets_its_secrets_and_a_rotated_one_at_the_next_start(tmp_path: Path) -> None:
    """From each source. A rotated secret needs a reconnect, which does not affect the daemon and other
    servers.
    """
    environ = private_environment(tmp_path)
    change_secrets(environ, {"STORED": "stored-1"})
    (tmp_path / "file").write_text("filed-1\n")
    (tmp_path / "credentials").mkdir()
    (tmp_path / "credentials" / "cred.one").write_text("credited-1\n")
    definition = with_secrets(
        A="<${secret:STORED}>",
        B="${file:file}",
        C="${credential:cred.one}",
        D="${cmd:cat '" + str(tmp_path / "file") + "'}",
        E="${secret:NONE:-${file:~/none:-${VAR}}}",
    )
    given = {"CREDENTIALS_DIRECTORY": str(tmp_path / "credentials"), "VAR": "from-variable"}
    with running(tmp_path, {"a": definition, "b": fake()}, settings=ALLOWED, environ=given) as daemon:
        daemon.wait_connected("a", "b")
        found = environment_of(daemon, "a")
        assert [found[name] for name in "ABCDE"] == [
            "<stored-1>",
            "filed-1",
            "credited-1",
            "filed-1",
            "from-variable",
        ]
        other = daemon.status("b")["pid"]
        change_secrets(environ, {"STORED": "stored-2"})
        (tmp_path / "file").write_text("filed-2")
        assert explained(daemon, "a") == (
            "it still uses the old value of the secret STORED",
            "mcpctl reconnect a   (ends its calls in progress)",
        )
        daemon.client().request("mcpd/reconnect", server="a", wait=BOUND)
        assert explained(daemon, "a") == ("", "mcpctl list-tools a")
        found = environment_of(daemon, "a")
        assert [found[name] for name in "ABCD"] == ["<stored-2>", "filed-2", "credited-1", "filed-2"]
        assert daemon.status("b")["pid"] == other
        change_secrets(environ, {"STORED": None})
        assert explained(daemon, "a") == (
            "it still uses the secret STORED, which was removed",
            "mcpctl secret set STORED, then: mcpctl reconnect a",
        )


def test_missing_secret_fails_only_its_server(start: Start) -> None:
    """The error names every searched place and the fix, and the start is not retried automatically."""
    daemon = start(
        {
            "a": with_secrets(A="${secret:NO_SUCH}", B="${file:/no/such}", C="${cmd:false}"),
            "b": fake(),
        },
        settings=ALLOWED,
    )
    status = daemon.wait_status("a", lambda status: status["status"] == "failed")
    daemon.wait_connected("b")
    error = status["last_error"]
    assert (error["kind"], status["retry_at"]) == ("secret", None)
    for part in (
        "$.mcpServers.a.env.A: there is no secret NO_SUCH (`mcpctl secret set NO_SUCH`)",
        "the file /no/such does not exist",
        "the command false failed with 1",
    ):
        assert part in error["message"]


def test_secret_command_has_no_shell_and_no_input_and_is_ended_after_its_output(
    start: Start, tmp_path: Path
) -> None:
    """Processes that the command leaves in its session are killed with it."""
    mark = tmp_path / "child"
    script = f"sleep 100 & echo $! > {mark}; cat; echo '$(id)'"
    daemon = start(
        {"a": with_secrets(A=f'${{cmd:sh -c "{script}"}}', B="${cmd:echo $(id) $HOME}")}, settings=ALLOWED
    )
    daemon.wait_connected("a")
    found = environment_of(daemon, "a")
    assert (found["A"], found["B"]) == ("$(id)", "$(id) $HOME")
    child = int(mark.read_text())
    wait_until(lambda: gone(child), lambda: f"{child} still runs")


def test_secret_command_ends_when_its_server_is_disabled(start: Start, tmp_path: Path) -> None:
    """A password manager that waits for input blocks neither other servers nor the shutdown."""
    mark = tmp_path / "pid"
    daemon = start(
        {"a": with_secrets(A=f"${{cmd:sh -c 'echo $$ > {mark}; sleep 100'}}"), "b": fake()}, settings=ALLOWED
    )
    daemon.wait_connected("b")
    wait_until(lambda: mark.exists() and bool(mark.read_text().strip()), lambda: "it was not started")
    child = int(mark.read_text())
    daemon.client().request("mcpd/disable", server="a", wait=BOUND)
    wait_until(lambda: gone(child), lambda: f"{child} still runs")


def test_mcpctl_stores_lists_and_deletes_secrets(start: Start, tmp_path: Path) -> None:
    """The value comes from stdin and is in no command line and no output; servers that need it are named."""
    # Most names identify secrets, whose literal values are masked.
    daemon = start({"a": with_secrets(A="${secret:TOKEN}", API_KEY="sk-${secret:TOKEN}")})
    daemon.wait_status("a", lambda status: status["status"] == "failed")
    listed = daemon.mcpctl("secret", "list")
    assert listed.stdout.splitlines()[1].split() == ["TOKEN", "missing", "a"]
    stored = daemon.mcpctl("secret", "set", "TOKEN", stdin="s3cr3t-value\n")
    assert stored.returncode == 0
    assert "a: connected" in stored.stdout  # it was retried
    assert stored.stderr == ""
    assert (tmp_path / "config/mcpd/secrets.json").stat().st_mode & 0o777 == 0o600
    assert environment_of(daemon, "a")["A"] == "s3cr3t-value"
    listed = daemon.mcpctl("secret", "list", "--json")
    assert json.loads(listed.stdout)["secrets"] == [{"name": "TOKEN", "stored": True, "used_by": ["a"]}]
    assert daemon.mcpctl("secret", "remove", "TOKEN").returncode == 2  # there is no terminal for a question
    removed = daemon.mcpctl("secret", "remove", "TOKEN", "--yes")
    assert (removed.returncode, removed.stderr) == (0, "note: still referenced by a\n")
    assert daemon.mcpctl("secret", "remove", "TOKEN", "--yes").returncode == 5


def test_proxy_is_passed_to_servers_and_one_with_a_password_as_a_secret(start: Start) -> None:
    """`why` and `import` name the command for it. A definition overrides what all servers have."""
    proxy, own = "http://me:s3cr3t-word@proxy:3128", "http://127.0.0.1:1"
    places = {"https_proxy": proxy, "HTTP_PROXY": "http://proxy:3128", "UV_INDEX_URL": "https://t0k@pypi.x/"}
    daemon = start({"a": fake(), "b": fake(env={"https_proxy": own})}, environ={**places, "OTHER": "x"})
    daemon.wait_connected("a", "b")
    before = daemon.status("a")["pid"]
    inherited = environment_of(daemon, "a")
    assert inherited["HTTP_PROXY"] == "http://proxy:3128"
    assert inherited.keys().isdisjoint(("https_proxy", "UV_INDEX_URL", "OTHER"))
    step = "printenv https_proxy | mcpctl secret set https_proxy --env"
    assert step in daemon.mcpctl("why", "a").stdout
    assert step in daemon.mcpctl("import", "--dry-run").stderr
    stored = daemon.mcpctl("secret", "set", "https_proxy", "--env", stdin=proxy)
    assert stored.returncode == 0, stored
    daemon.wait_status("a", lambda status: status["status"] == "connected" and status["pid"] != before)
    assert environment_of(daemon, "a")["https_proxy"] == proxy
    assert environment_of(daemon, "b")["https_proxy"] == own
    assert step not in daemon.mcpctl("import", "--dry-run").stderr
    assert "s3cr3t-word" not in daemon.config.read_text() + daemon.mcpctl("debug", "a", "--json").stdout


@pytest.mark.parametrize(
    "argv",
    [["TOKEN", "hunter2-value"], ["TOKEN=hunter2-value"], ["--", "TOKEN", "hunter2-value"]],
)
def test_a_secret_on_the_command_line_is_refused_and_not_repeated(tmp_path: Path, argv: list[str]) -> None:
    """The secret is exposed already, and storing it would suggest that this is safe."""
    environ = {**private_environment(tmp_path), "MCPD_NO_START": "1"}
    ran = subprocess.run(
        [sys.executable, "-m", "ctl", "secret", "set", *argv],
        input="x\n",
        capture_output=True,
        text=True,
        timeout=BOUND,
        env=environ,
    )
    assert ran.returncode == 2
    assert "hunter2" not in ran.stdout + ran.stderr
    assert not os.path.exists(tmp_path / "config/mcpd/secrets.json")
