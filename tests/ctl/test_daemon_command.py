"""`mcpctl daemon` without systemd: a background daemon, played by a stub."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
from pathlib import Path
from typing import IO

import pytest

from ctl.cli.errors import BadConfiguration
from ctl.cli.invocation import CliContext
from ctl.daemon import process, systemd
from tests.ctl.conftest import Mcpctl
from tests.ctl.fake_daemon import FakeDaemon, status
from tests.ctl.test_daemon_process import Place, place
from tests.processes import gone, wait_until

__all__ = ["place"]  # the fixture


def test_start_status_restart_and_stop_in_the_background(place: Place) -> None:
    """Each command sees the effect of the previous one."""
    assert place.ctl("daemon", "status").returncode == 3

    done = place.ctl("daemon", "start")
    assert done.returncode == 0, done.stderr
    assert "mcpd 0.0-standin is running" in done.stdout
    assert "in the background" in done.stdout

    first = json.loads(place.ctl("daemon", "status", "--json").stdout)
    assert first == {
        "running": True,
        "responds": True,
        "pid": first["pid"],
        "version": "0.0-standin",
        "socket": str(place.socket),
        "started_by": "background",
        "log": f"{place.home}/.local/state/mcpd/daemon.log",
        "installed": False,
        "unit": None,
        "reason": None,
        "problems": [],
        "warnings": [],
        "next": None,
    }

    second = json.loads(place.ctl("daemon", "restart", "--json").stdout)
    assert second["running"]
    assert second["pid"] != first["pid"]
    wait_until(lambda: gone(first["pid"]))

    done = place.ctl("daemon", "stop")
    assert (done.returncode, done.stdout) == (0, "mcpd stopped\n")
    wait_until(lambda: gone(second["pid"]))
    assert not place.socket.exists()


def test_restart_refuses_an_invalid_configuration(place: Place) -> None:
    """The running daemon serves every editor, and a new one could not start."""
    place.configure('{"mcpServers": {"time": {"command": "true"}}}')
    first = json.loads(place.ctl("daemon", "start", "--json").stdout)["pid"]
    place.configure('{"mcpServers": {"time": {"comand": 7}}}')
    done = place.ctl("daemon", "restart")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[0] == f"error: mcpd was not restarted: {place.config} is invalid"
    assert "$.mcpServers.time" in done.stderr
    assert done.stderr.splitlines()[-1] == "next: mcpctl edit"
    assert json.loads(place.ctl("daemon", "status", "--json").stdout)["pid"] == first
    error = json.loads(place.ctl("daemon", "restart", "--json").stderr)["error"]
    assert (error["code"], error["exit"]) == ("bad_spec", 2)
    assert error["problems"]
    place.ctl("daemon", "stop")
    done = place.ctl("daemon", "start", STUB="refuses")
    assert done.returncode == 2
    assert "mcpd was not started" in done.stderr


def test_daemon_status_reports_what_the_start_could_not_use(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """A daemon starts with the last valid configuration, and without HTTP if the port is in use."""
    problem = {"path": "$", "message": "not valid JSON", "fix": "fix it"}
    daemon.answers["mcpd/version"] = {"pid": 7, "version": "1"}
    daemon.answers["mcpd/status"] = status(problems=[problem], warnings=["cannot listen"])
    for command in ("status", "start"):
        ran = mcpctl("daemon", command)
        assert ran.code == 0
        assert "The configuration file has errors; using the configuration loaded" in ran.out
        assert "  $: not valid JSON (fix it)\nnext: mcpctl edit\n\nwarning: cannot listen\n" in ran.out
    facts = mcpctl("daemon", "status", "--json").json()
    assert (facts["problems"], facts["warnings"]) == ([problem], ["cannot listen"])
    assert "lines" not in facts


def test_environment_of_the_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its unit may add variables, directly or from a file."""
    file = tmp_path / "environment"
    file.write_text('# tokens\nFROM_FILE="a b"\n')
    answers = {
        "show-environment": "HOME=/home/me\nODD=$'a b'\n",
        "show": f'Environment=PATH=/usr/bin "TWO=a b"\nEnvironmentFiles={file} (ignore_errors=no)\n',
    }
    monkeypatch.setattr(systemd, "systemctl", lambda *words: answers[words[0]])
    assert systemd.service_environment() == {
        "HOME": "/home/me",
        "ODD": "a b",
        "PATH": "/usr/bin",
        "TWO": "a b",
        "FROM_FILE": "a b",
    }


def test_daemon_without_its_socket_is_found_by_its_lock(place: Place) -> None:
    """The stub does not bind its socket again. The commands do not say that the daemon is not running."""
    pid = json.loads(place.ctl("daemon", "start", "--json").stdout)["pid"]
    place.socket.unlink()
    done = place.ctl("daemon", "status")
    assert done.returncode == 3
    assert f"mcpd is running (pid {pid}), but cannot be reached: its socket was removed" in done.stdout
    assert "next: mcpctl daemon restart" in done.stderr
    done = place.ctl("--no-start", "status")
    assert done.returncode == 3
    assert f"mcpd is running (pid {pid}), but not listening at {place.socket}\n" in done.stderr
    assert "next: mcpctl daemon restart" in done.stderr
    findings = {
        f["check"]: f for f in json.loads(place.ctl("doctor", "--no-shell", "--json").stdout)["findings"]
    }
    assert (findings["daemon"]["result"], findings["daemon"]["next"]) == ("failure", "mcpctl daemon restart")
    second = json.loads(place.ctl("daemon", "restart", "--json").stdout)
    assert second["responds"]
    wait_until(lambda: gone(pid))
    place.socket.unlink()
    done = place.ctl("daemon", "stop")
    assert (done.returncode, done.stdout) == (0, "mcpd stopped\n")
    assert gone(second["pid"])


def test_client_that_starts_the_service_gets_the_errors_in_the_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """systemd closes its connection, because the service exits with 2."""
    file = tmp_path / "config.json"
    file.write_text("{ not JSON")
    monkeypatch.setenv("MCPD_CONFIG", str(file))
    monkeypatch.setattr(systemd, "manages_socket", lambda _: True)
    unit = {"ActiveState": "failed", "ExecMainStatus": "2"}
    monkeypatch.setattr(systemd, "service_properties", lambda: unit)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        cli = CliContext({"MCPD_SOCKET": str(tmp_path / "s")})
        cli.client()
        listener.accept()[0].close()
        with pytest.raises(BadConfiguration, match=r"config\.json is invalid") as caught:
            cli.call("mcpd/status")
        cli.close()
    assert len(caught.value.problems) == 1


def test_restart_resets_the_limit_of_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise systemd stops the service, and then refuses the sixth start within a minute."""
    commands: list[tuple[str, ...]] = []
    monkeypatch.setattr(systemd, "systemctl", lambda *words: commands.append(words))
    monkeypatch.setattr(systemd, "socket_is_lost", lambda: False)
    process.restart_service()
    assert commands == [("reset-failed", "mcpd.service", "mcpd.socket"), ("restart", "mcpd.service")]


def test_log_of_a_background_daemon_is_shown(place: Place) -> None:
    """Its last lines and, with -f, later ones."""
    assert place.ctl("daemon", "logs").returncode == 1
    pid = json.loads(place.ctl("daemon", "start", "--json").stdout)["pid"]
    assert place.ctl("daemon", "logs", "-n", "1").stdout == f"stand-in {pid} starts\n"
    answer = json.loads(place.ctl("daemon", "logs", "--json").stdout)
    assert answer == {
        "source": f"{place.home}/.local/state/mcpd/daemon.log",
        "lines": [f"stand-in {pid} starts"],
    }

    argv = [f"{place.home}/bin/mcpctl", "daemon", "logs", "-f"]
    following = subprocess.Popen(argv, env=place.environ, stdout=subprocess.PIPE)
    try:
        assert following.stdout is not None
        expect(following.stdout, f"stand-in {pid} starts\n")
        again = json.loads(place.ctl("daemon", "restart", "--json").stdout)["pid"]
        expect(following.stdout, f"stand-in {again} starts\n")
        following.send_signal(signal.SIGINT)
        assert following.wait(90) == 130
    finally:
        following.kill()
        following.communicate(timeout=90)


def expect(pipe: IO[bytes], text: str) -> None:
    """Wait up to a minute for the next line."""
    said = b""
    while len(said) < len(text):
        assert select.select([pipe], [], [], 60)[0], said
        portion = os.read(pipe.fileno(), len(text) - len(said))
        assert portion, said
        said += portion
    assert said.decode() == text


def test_install_without_systemd_writes_the_units_and_fails(place: Place) -> None:
    """For example in a container. Nothing is enabled, and the error and the exit code say so."""
    done = place.ctl("daemon", "install", PATH="/opt/my tools:relative::/bin:/bin")
    assert done.returncode == 1
    assert "error: the units were written, but not enabled or started: " in done.stderr
    assert "next: mcpctl daemon start   (works without systemd" in done.stderr
    assert place.ctl("daemon", "install", PATH="/opt/my tools:relative::/bin:/bin").returncode == 1
    units = place.home / ".config/systemd/user"
    service = (units / "mcpd.service").read_text()
    assert f"\nExecStart={place.home}/bin/mcpd\n" in service
    assert '\nEnvironment="PATH=/opt/my tools:/bin"\n' in service
    assert "(install)" not in service.split("[Unit]")[1]
    assert (units / "mcpd.socket").exists()
    assert sorted(path.name for path in units.iterdir()) == ["mcpd.service", "mcpd.socket"]
    assert json.loads(place.ctl("daemon", "status", "--json").stdout)["installed"] is True
    assert place.started() == []

    own = units / "mcpd.service.d"
    own.mkdir()
    (own / "override.conf").write_text("[Service]\nStandardOutput=journal\n")
    assert place.ctl("daemon", "install").returncode == 1
    removed = place.ctl("daemon", "uninstall")
    assert removed.returncode == 0
    assert list(units.iterdir()) == [own]
    again = place.ctl("daemon", "uninstall", "--json")
    assert json.loads(again.stdout) == {"removed": []}
    assert "was not installed" in place.ctl("daemon", "uninstall").stdout
    (own / "override.conf").unlink()
    own.rmdir()
    place.ctl("daemon", "install")
    place.ctl("daemon", "uninstall")
    assert not units.parent.exists(), "what the installation has created"


def test_unit_contains_no_environment_variable_but_path(place: Place) -> None:
    """Other environment variables may contain tokens."""
    done = place.ctl("daemon", "install", "--dry-run", SECRET_TOKEN="canary-1234", HTTPS_PROXY="canary-5678")
    assert "canary" not in done.stdout
    assert not (place.home / ".config").exists()


@pytest.mark.parametrize(
    ("word", "unit_word"),
    [
        ("/usr/bin/mcpd", "/usr/bin/mcpd"),
        ("/my tools/mcpd", '"/my tools/mcpd"'),
        ("/100%/mcpd", "/100%%/mcpd"),
        ("/a$b/mcpd", "/a$$b/mcpd"),
        ('/a"b\\c', '"/a\\"b\\\\c"'),
        ("", '""'),
    ],
)
def test_quoting_for_systemd(word: str, unit_word: str) -> None:
    """See systemd.service(5): specifiers, variables, quotes."""
    assert systemd.quote_for_systemd(word) == unit_word
