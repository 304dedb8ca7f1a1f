"""Processes that left their group are found by the label they inherited, and reaped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from mcpd.process import labels, processes
from mcpd.process.labels import carrying, labels_of
from tests.processes import wait_until


@pytest.fixture
def mark() -> Iterator[str]:
    mark = f"test-{uuid.uuid4().hex}"
    yield mark
    assert labels.kill_marked(mark, timeout=30) == []


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[bytes]]]:
    """The child processes that a test starts; the fixture kills and reaps them."""
    children: list[subprocess.Popen[bytes]] = []
    yield children
    for child in children:
        child.kill()
        child.wait(30)


def start(children: list[subprocess.Popen[bytes]], mark: str, script: str = "exec sleep 999") -> int:
    with carrying(labels_of(mark).start):
        child = subprocess.Popen(
            ["sh", "-c", script], env={"PATH": os.environ["PATH"], labels.INSTANCE_VARIABLE: mark}
        )
    children.append(child)
    wait_until(lambda: f"={mark}".encode() in Path(f"/proc/{child.pid}/environ").read_bytes())
    return child.pid


@pytest.fixture(params=["labels", "environment"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How processes are found: by their labels, or on a system without labels by their environment."""
    if request.param == "environment":
        monkeypatch.setattr(labels, "are_supported", lambda: False)
    return str(request.param)


@pytest.mark.usefixtures("way")
def test_a_mark_is_found_exactly_or_followed_by_a_dot(
    mark: str, started: list[subprocess.Popen[bytes]]
) -> None:
    """`a.1` belongs to `a`, but `ab` does not, and `a.10` does not belong to `a.1`."""
    whole = start(started, mark)
    first, tenth = start(started, f"{mark}.1"), start(started, f"{mark}.10")
    start(started, f"{mark}b")
    start(started, f"x{mark}")
    assert sorted(labels.find_marked(mark)) == sorted([whole, first, tenth])
    assert labels.find_marked(f"{mark}.1") == [first]
    for child in started:
        child.kill()


@pytest.mark.usefixtures("way")
def test_a_grandchild_in_a_session_of_its_own_is_found_and_ended(
    mark: str, started: list[subprocess.Popen[bytes]]
) -> None:
    """`killpg` does not reach it, and it ignores SIGTERM."""
    start(started, mark, "setsid sh -c 'trap \"\" TERM; sleep 999; :' & wait")
    wait_until(lambda: len(labels.find_marked(mark)) == 3)
    assert labels.kill_marked(mark, timeout=30) == []
    assert labels.find_marked(mark) == []


@pytest.mark.usefixtures("way")
def test_own_process_and_zombies_are_not_found(mark: str, started: list[subprocess.Popen[bytes]]) -> None:
    """A daemon started by an MCP server inherits a label itself. Zombies need no kill."""
    code = f"from mcpd.process.labels import find_marked; input(); print(find_marked({mark!r}))"
    with carrying(labels_of(mark).start):
        daemon = subprocess.Popen(
            [sys.executable, "-c", code],
            env={**os.environ, labels.INSTANCE_VARIABLE: mark},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
    assert daemon.communicate(b"\n", timeout=30)[0] == b"[]\n"
    pid = start(started, mark)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: " Z " in Path(f"/proc/{pid}/stat").read_text())
    assert labels.find_marked(mark) == []


STRAYS = """
import os, subprocess, sys, time
from mcpd.process import processes
assert processes.become_subreaper()
ours = subprocess.Popen(["sh", "-c", "exit 7"])
wrapper = subprocess.Popen(["sh", "-c", "sh -c 'sleep 0.1; exit 3' & exit 0"])
wrapper.wait()
def zombies():
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try: fields = open(f"/proc/{entry}/stat").read().rpartition(") ")[2].split()
            except OSError: continue
            if fields[0] == "Z" and int(fields[1]) == os.getpid(): found.append(int(entry))
    return found
end = time.monotonic() + 30
while len(zombies()) < 2: assert time.monotonic() < end; time.sleep(0.01)
assert processes.reap_orphans({ours.pid}, min_age=60) == 0, "too young: perhaps a child that is being started"
assert processes.reap_orphans({ours.pid}, min_age=0) == 1
assert zombies() == [ours.pid]
assert processes.reap_orphans({ours.pid}, min_age=0) == 0
assert ours.wait() == 7, "its exit status was not stolen"
assert processes.reap_orphans((), min_age=0) == 0
print("ok")
"""


def test_subreaper_reaps_orphans_but_not_owned_children() -> None:
    """It waits for specific pids, because waiting for any child would also take owned children."""
    assert subprocess.run([sys.executable, "-c", STRAYS], capture_output=True, check=True).stdout == b"ok\n"


UNDUMPABLE = """
import os, subprocess, sys, time
from mcpd.process import guardian_process as program
from mcpd.process import labels, processes
if len(sys.argv) > 1: os.setresuid(4321, 4321, 4321)
processes.disable_core_dumps()
os.listdir("/proc/self/fd"); open("/proc/self/smaps_rollup").read()  # what a daemon looks at itself
mark = f"undumpable-{os.getpid()}"
with labels.carrying(labels.labels_of(mark).start):
    child = subprocess.Popen(["sleep", "99"], env={"PATH": os.environ["PATH"], "MCPD_INSTANCE": mark})
end = time.monotonic() + 30
while labels.find_marked(mark) != [child.pid]: assert time.monotonic() < end  # children are readable
child.kill(); child.wait()
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.root
@pytest.mark.parametrize("ordinary_user", [False, True])
def test_an_undumpable_daemon_hides_its_memory_and_still_finds_its_children(ordinary_user: bool) -> None:
    """Its own environ then belongs to root; those of its children stay readable."""
    if os.getuid() != 0:
        pytest.skip("needs root to become another user")
    argv = [sys.executable, "-c", UNDUMPABLE] + ["as another user"] * ordinary_user
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as daemon:
        assert daemon.stdout is not None
        assert daemon.stdout.readline() == b"ready\n"
        assert os.stat(f"/proc/{daemon.pid}/environ").st_uid == 0
        daemon.communicate(timeout=30)
    assert daemon.returncode == 0


RECORDED = """
import sys
from mcpd.process.processes import record_instance
with record_instance(sys.argv[1], sys.argv[2]):
    print("up", flush=True)
    sys.stdin.read()
"""


def test_processes_of_dead_instances_are_killed_and_of_living_ones_not(
    mark: str, tmp_path: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    """If the daemon and its guardian were both killed, the next start cleans up."""
    dead, living = f"{mark}-dead", f"{mark}-living"
    directory = tmp_path / "instances"
    daemons = {}
    for name in (dead, living):
        daemon = subprocess.Popen(
            [sys.executable, "-c", RECORDED, str(directory), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert daemon.stdout is not None
        assert daemon.stdout.readline() == b"up\n"
        daemons[name] = daemon
        start(started, f"{name}.0")
    daemons[dead].kill()
    daemons[dead].communicate()
    try:
        assert (directory / dead).read_text().startswith(f"{daemons[dead].pid} ")
        assert processes.sweep_dead_instances(str(directory)) == {dead: 1}
        assert labels.find_marked(dead) == []
        assert len(labels.find_marked(living)) == 1
        assert [path.name for path in directory.iterdir()] == [living]
    finally:
        daemons[living].communicate(timeout=30)
    assert list(tmp_path.iterdir()) == [], "the last one removes the directory"
