"""Every command starts exactly one daemon if none is running, unless this is disabled."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import attrs
import pytest

from ctl.daemon.client import DaemonClient
from tests.processes import wait_until
from tests.stopwatch import stopwatch, within

ROOT = Path(__file__).resolve().parents[2]
STUB = Path(__file__).with_name("stub_daemon.py")


@attrs.frozen
class Place:
    """A home directory and a bin directory with mcpctl and mcpd, as in an installation."""

    home: Path
    socket: Path
    environ: dict[str, str]

    def ctl(self, *argv: str, **environ: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [f"{self.home}/bin/mcpctl", *argv],
            env={**self.environ, **environ},
            capture_output=True,
            text=True,
            timeout=90,
        )

    def ensure(self, **environ: str) -> subprocess.Popen[str]:
        """Start a client that ensures a daemon and prints its pid."""
        code = (
            f"import sys; sys.argv = ['{self.home}/bin/mcpctl']\n"
            "from ctl.cli import errors; from ctl.daemon import process\n"
            f"path = {str(self.socket)!r}\n"
            "try: process.ensure_daemon(path); print(process.daemon_pid(path))\n"
            "except errors.DaemonUnreachable as error: print(error.message, error.hint); sys.exit(3)\n"
        )
        return subprocess.Popen(
            [sys.executable, "-X", "dev", "-c", code],
            env={**self.environ, **environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def started_with(self) -> list[str]:
        """Return MCPD_CONFIG of every daemon that was started."""
        return (self.home / "configs").read_text().splitlines()

    @property
    def config(self) -> Path:
        return self.home / ".config/mcpd/config.json"

    def configure(self, text: str) -> None:
        """Write the configuration file."""
        self.config.parent.mkdir(parents=True, exist_ok=True)
        self.config.write_text(text)

    def let_daemon_leave(self) -> None:
        """Let a daemon exit that `lingers`."""
        (self.home / "leave").touch()

    def started(self) -> list[list[str]]:
        """Return pid, MCPD_INSTANCE and directory of every daemon that was started."""
        trace = self.home / "trace"
        return [line.split() for line in trace.read_text().splitlines()] if trace.exists() else []


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    home, binaries = tmp_path, tmp_path / "bin"
    binaries.mkdir()
    script(binaries / "mcpd", f"import runpy; runpy.run_path({str(STUB)!r}, run_name='__main__')")
    script(binaries / "mcpctl", "from ctl.main import main; main()")
    (home / "run").mkdir(mode=0o700)
    environ = {
        "HOME": str(home),
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
        "XDG_RUNTIME_DIR": str(home / "run"),
        "STUB_TRACE": str(home / "trace"),
        "STUB_CONFIGS": str(home / "configs"),
    }
    place = Place(home, home / "run" / "mcpd" / "mcpd.sock", environ)
    yield place
    for pid, *_ in place.started():
        try:
            os.kill(int(pid), signal.SIGKILL)
        except ProcessLookupError:
            continue


def script(path: Path, code: str) -> None:
    path.write_text(f"#!{sys.executable}\n{code}\n")
    path.chmod(0o755)


def has_pidfd(pid: int) -> bool:
    """Return whether a process has opened another one, to wait until that exits."""
    links = []
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            links.append(os.readlink(each))
    return any("pidfd" in link for link in links)


def answer(client: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = client.communicate(timeout=90)
    return client.returncode, out.strip(), err.strip()


def test_ensure_daemon_starts_one_and_prints_one_line(place: Place) -> None:
    """It responds within two seconds, has no terminal and writes to a private log."""
    with stopwatch() as watch:
        code, pid, talk = answer(place.ensure())
        took = watch.seconds
    assert (code, talk) == (
        0,
        f"mcpctl: starting mcpd in the background (log: {place.home}/.local/state/mcpd/daemon.log)",
    )
    assert within(took, 2.0)
    assert place.started() == [[pid, "-", "/"]]
    assert os.getsid(int(pid)) == int(pid)
    log = place.home / ".local/state/mcpd/daemon.log"
    assert f"stand-in {pid} starts" in log.read_text()
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    assert stat.S_IMODE(place.socket.parent.stat().st_mode) == 0o700


def test_fifty_concurrent_clients_start_one_daemon(place: Place) -> None:
    """All clients get the same daemon."""
    clients = [place.ensure() for _ in range(50)]
    answers = [answer(client) for client in clients]
    assert {code for code, _, _ in answers} == {0}, answers
    assert len({pid for _, pid, _ in answers}) == 1
    assert len(place.started()) == 1
    assert sum("starting mcpd" in talk for _, _, talk in answers) == 1


def test_start_lock_is_released_when_its_holder_is_killed(place: Place) -> None:
    """The kernel releases the lock, and the next client starts the daemon."""
    client = place.ensure(STUB="mute")
    wait_until(lambda: len(place.started()) == 1)
    client.kill()
    client.communicate(timeout=90)
    code, _, _ = answer(place.ensure())
    assert code == 0
    assert len(place.started()) == 2


def test_client_waits_for_a_daemon_that_is_stopping(place: Place) -> None:
    """It no longer listens, but a second daemon would find that it is still running, and exit."""
    _, first, _ = answer(place.ensure(STUB="lingers"))
    with DaemonClient(str(place.socket)) as client:
        client.call("mcpd/shutdown")
    wait_until(lambda: not place.socket.exists())
    waiting = place.ensure()
    wait_until(lambda: has_pidfd(waiting.pid))
    place.let_daemon_leave()
    code, second, _ = answer(waiting)
    assert code == 0
    assert [pid for pid, *_ in place.started()] == [first, second]


def test_no_start_variable_prevents_starting(place: Place) -> None:
    """With MCPD_NO_START=1 and --no-start; exit code 3 and a hint."""
    code, words, talk = answer(place.ensure(MCPD_NO_START="1"))
    assert (code, talk) == (3, "")
    assert "MCPD_NO_START prevents" in words
    assert "mcpctl daemon start" in words
    lacks = place.ctl("call", "add", "a=1", MCPD_NO_START="1")  # a tool without a server: the daemon knows it
    for done in (place.ctl("status", "--no-start"), place.ctl("status", MCPD_NO_START="1"), lacks):
        assert done.returncode == 3
        assert "mcpctl daemon start" in done.stderr
    assert place.started() == []


def test_failed_start_reports_the_end_of_the_log_immediately(place: Place) -> None:
    """With the exit status, before the timeout ends."""
    with stopwatch() as watch:
        code, words, _ = answer(place.ensure(STUB="fails"))
        took = watch.seconds
    assert code == 3
    assert "exited with status 78" in words
    assert "cannot read the configuration: ]" in words
    assert within(took, 3.0)


def test_instance_variable_of_a_server_is_not_inherited(place: Place) -> None:
    """Otherwise mcpd would kill the new daemon together with that server."""
    answer(place.ensure(MCPD_INSTANCE="somebody.3", NOTIFY_SOCKET="/nowhere"))
    assert [mark for _, mark, _ in place.started()] == ["-"]


def test_socket_in_a_shared_writable_directory_is_refused(place: Place) -> None:
    """Other users could replace the socket."""
    open_to_all = place.home / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    done = place.ctl("status", MCPD_SOCKET=f"{open_to_all}/s")
    assert done.returncode == 3
    assert "other users can write" in done.stderr


def test_unresponsive_program_on_the_socket_is_left_alone(place: Place) -> None:
    """No daemon is started, and the error has a hint."""
    place.socket.parent.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(place.socket))
        other.listen()
        done = place.ctl("daemon", "start")
        assert done.returncode == 3
        assert "does not respond" in done.stderr
        assert "MCPD_SOCKET" in done.stderr
        assert place.socket.is_socket()
    assert place.started() == []
