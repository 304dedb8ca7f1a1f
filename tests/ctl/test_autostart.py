"""Any command brings a daemon, exactly one, unless that is forbidden (RELIABILITY E4)."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from tests.processes import wait_until
from tests.stopwatch import stopwatch

ROOT = Path(__file__).resolve().parents[2]
STANDIN = Path(__file__).with_name("standin_daemon.py")


@attrs.frozen
class Place:
    """A home directory and a bin directory with mcpctl and mcpd side by side, as installers make it."""

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
        """A client that wants a daemon, and prints the pid of the one that answers."""
        code = (
            f"import sys; sys.argv = ['{self.home}/bin/mcpctl']\n"
            "from ctl import daemon_process, errors\n"
            f"path = {str(self.socket)!r}\n"
            "try: daemon_process.ensure_daemon(path); print(daemon_process.daemon_pid(path))\n"
            "except errors.DaemonUnreachable as error: print(error.message, error.hint); sys.exit(3)\n"
        )
        return subprocess.Popen(
            [sys.executable, "-X", "dev", "-c", code],
            env={**self.environ, **environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def started(self) -> list[list[str]]:
        """Pid, mark and directory of every daemon that was started here."""
        trace = self.home / "trace"
        return [line.split() for line in trace.read_text().splitlines()] if trace.exists() else []


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    home, binaries = tmp_path, tmp_path / "bin"
    binaries.mkdir()
    script(binaries / "mcpd", f"import runpy; runpy.run_path({str(STANDIN)!r}, run_name='__main__')")
    script(binaries / "mcpctl", "from ctl.main import main; main()")
    (home / "run").mkdir(mode=0o700)
    environ = {
        "HOME": str(home),
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
        "XDG_RUNTIME_DIR": str(home / "run"),
        "STANDIN_TRACE": str(home / "trace"),
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


def answer(client: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = client.communicate(timeout=90)
    return client.returncode, out.strip(), err.strip()


def test_a_client_without_a_daemon_starts_one_and_says_so_in_one_line(place: Place) -> None:
    """It is ready within two seconds, belongs to no terminal, and writes to a private log."""
    with stopwatch() as watch:
        code, pid, talk = answer(place.ensure())
        took = watch.seconds
    assert (code, talk) == (
        0,
        f"mcpctl: starting mcpd in the background (log: {place.home}/.local/state/mcpd/daemon.log)",
    )
    assert took < 2.0
    assert place.started() == [[pid, "-", "/"]]
    assert os.getsid(int(pid)) == int(pid)
    log = place.home / ".local/state/mcpd/daemon.log"
    assert f"stand-in {pid} starts" in log.read_text()
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    assert stat.S_IMODE(place.socket.parent.stat().st_mode) == 0o700


def test_a_running_daemon_is_used_without_a_word(place: Place) -> None:
    """The second client prints nothing and starts nothing."""
    _, first, _ = answer(place.ensure())
    assert answer(place.ensure()) == (0, first, "")
    assert len(place.started()) == 1


def test_fifty_clients_at_once_start_exactly_one_daemon(place: Place) -> None:
    """E4: all are served by the same one."""
    clients = [place.ensure() for _ in range(50)]
    answers = [answer(client) for client in clients]
    assert {code for code, _, _ in answers} == {0}, answers
    assert len({pid for _, pid, _ in answers}) == 1
    assert len(place.started()) == 1
    assert sum("starting mcpd" in talk for _, _, talk in answers) == 1


def test_a_stale_socket_of_a_killed_daemon_is_no_obstacle(place: Place) -> None:
    """E3, from the client's side."""
    _, first, _ = answer(place.ensure())
    os.kill(int(first), signal.SIGKILL)
    code, second, _ = answer(place.ensure())
    assert code == 0
    assert second != first


def test_a_starter_that_is_killed_gives_up_its_turn(place: Place) -> None:
    """The kernel frees the lock; the next client starts the daemon itself."""
    client = place.ensure(STANDIN="mute")
    wait_until(lambda: len(place.started()) == 1)
    client.kill()
    client.communicate(timeout=30)
    code, _, _ = answer(place.ensure())
    assert code == 0
    assert len(place.started()) == 2


def test_starting_can_be_forbidden(place: Place) -> None:
    """MCPD_NO_START=1 and --no-start; exit code 3 and the command that would help."""
    code, words, talk = answer(place.ensure(MCPD_NO_START="1"))
    assert (code, talk) == (3, "")
    assert "MCPD_NO_START prevents" in words
    assert "mcpctl daemon start" in words
    for done in (place.ctl("status", "--no-start"), place.ctl("status", MCPD_NO_START="1")):
        assert done.returncode == 3
        assert "mcpctl daemon start" in done.stderr
    assert place.started() == []


def test_a_daemon_that_fails_is_reported_with_the_end_of_its_log_at_once(place: Place) -> None:
    """And with its exit status, not after the whole time limit."""
    with stopwatch() as watch:
        code, words, _ = answer(place.ensure(STANDIN="fails"))
        took = watch.seconds
    assert code == 3
    assert "exited with status 78" in words
    assert "cannot read the configuration: ]" in words
    assert took < 3.0


def test_after_a_configuration_that_cannot_be_used_its_mistakes_are_next(place: Place) -> None:
    """The log has the first of them; who mends one wants to see all."""
    code, words, _ = answer(place.ensure(STANDIN="refuses"))
    assert code == 3
    assert "exited with status 2: " in words
    assert words.endswith("mcpctl config validate   (lists all errors; fix them with mcpctl edit)")


def test_what_an_earlier_daemon_wrote_is_not_told_as_this_ones_end(place: Place) -> None:
    """Nor are records shown as JSON: these are the words for whoever wanted to see a status."""
    log = place.home / ".local/state/mcpd/daemon.log"
    log.parent.mkdir(parents=True)
    log.write_text('{"time": "then", "level": "info", "message": "an old tale"}\n')
    code, words, _ = answer(place.ensure(STANDIN="fails"))
    assert code == 3
    assert "an old tale" not in words
    assert "exited with status 78: stand-in " in words
    assert " it warns first; cannot read the configuration" in words


def test_a_daemon_started_by_a_servers_child_is_not_marked_as_that_servers(place: Place) -> None:
    """Else it would be swept away together with the daemon whose server started it."""
    answer(place.ensure(MCPD_INSTANCE="somebody.3", NOTIFY_SOCKET="/nowhere"))
    assert [mark for _, mark, _ in place.started()] == ["-"]


def test_a_long_log_is_put_aside_at_the_next_start(place: Place) -> None:
    """Nothing grows for ever."""
    log = place.home / ".local/state/mcpd/daemon.log"
    log.parent.mkdir(parents=True)
    log.write_bytes(b"x" * (5 * 1024 * 1024 + 1))
    answer(place.ensure())
    assert log.stat().st_size < 1000
    assert log.with_name("daemon.log.1").stat().st_size > 5_000_000


def test_a_socket_in_a_place_where_others_may_write_is_refused(place: Place) -> None:
    """They could put theirs in its place."""
    open_to_all = place.home / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    done = place.ctl("status", MCPD_SOCKET=f"{open_to_all}/s")
    assert done.returncode == 3
    assert "other users can write" in done.stderr


def test_the_daemon_beside_mcpctl_is_the_one_that_is_started(place: Place) -> None:
    """Not whichever comes first in PATH."""
    done = place.ctl("daemon", "install", "--dry-run", "--json")
    units = json.loads(done.stdout)["units"]
    assert f"ExecStart={place.home}/bin/mcpd" in units[f"{place.home}/.config/systemd/user/mcpd.service"]


def test_somebody_elses_program_on_the_socket_is_left_alone(place: Place) -> None:
    """It listens and does not answer: nothing is started over it, and the error says what to do."""
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
