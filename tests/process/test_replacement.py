"""A version that does not work is found out on trial, in time, and the reason is known."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path

import pytest

from mcpd.process import replacement
from mcpd.process.replacement import FORMAT, CannotReplace, try_out
from tests.stopwatch import stopwatch

ANSWER = f"print(json.dumps(dict(upgrade_format={FORMAT}, version='2')), flush=True)"
BROKEN = {
    "raise ImportError('no module named trio')": "exited with status 1: ImportError: no module named trio",
    "this is no Python": "exited with status 1: SyntaxError: invalid syntax",
    "print('mcpd: bad configuration', file=sys.stderr); sys.exit(2)": "with status 2: bad configuration",
    "pass": "cannot replace a running daemon",
    "print('usage: mcpd'); sys.exit(0)": "cannot replace a running daemon: usage: mcpd",
    "print(json.dumps(dict(upgrade_format=99, version='2')))": "format 99",
    "os.kill(os.getpid(), 11)": "was killed by signal 11",
    "time.sleep(999)": "has not answered within",
    f"{ANSWER}; time.sleep(999)": "has not answered within",
    "os.close(1); os.close(2); time.sleep(999)": "has not answered within",
    "while True: os.write(1, b'x' * 65536)": "has not answered within",
    "os.fork() or time.sleep(999); sys.exit(3)": "exited with status 3",
}
"""What is wrong with a version, and what people are told."""


def program(path: Path, body: str, interpreter: str = sys.executable) -> list[str]:
    path.write_text(f"#!{interpreter}\nimport json, os, sys, time\n{body}\n")
    path.chmod(0o755)
    return [str(path)]


@pytest.mark.parametrize("body", BROKEN)
async def test_a_broken_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    hangs = "has not answered" in BROKEN[body]
    monkeypatch.setattr(replacement, "TRIAL_TIMEOUT", 0.5 if hangs else 60.0)
    with stopwatch() as watch, pytest.raises(CannotReplace) as refused:
        await try_out(program(tmp_path / "mcpd", body), "1", b"")
    assert BROKEN[body] in str(refused.value)
    assert watch.seconds < 60


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("is missing", "No such file"),
        ("has no interpreter", "No such file"),
        ("is not executable", "Permission denied"),
        ("is no program", "Exec format error"),
    ],
)
async def test_a_version_that_cannot_be_started(tmp_path: Path, kind: str, reason: str) -> None:
    path = tmp_path / "mcpd"
    if kind != "is missing":
        program(path, "pass", "/no/python" if "interpreter" in kind else sys.executable)
    if kind == "is not executable":
        path.chmod(0o600)
    elif kind == "is no program":
        path.write_bytes(b"\x7fELF garbage")
    with pytest.raises(CannotReplace, match=reason):
        await try_out([str(path)], "1", b"")


async def test_a_version_that_works_gets_the_state(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    body = (
        "from mcpd.process.replacement import find_task, read_state\n"
        "mode, fd = find_task(os.environ)\n"
        f"open({str(seen)!r}, 'w').write(f'{{mode}} {{read_state(fd).decode()}}')\n{ANSWER}"
    )
    assert await try_out(program(tmp_path / "mcpd", body), "1", b"a state") == "2"
    assert seen.read_text() == "check a state"


def test_other_programs_do_not_inherit_what_is_taken_over() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        socket.send_fds(ours, [b"2"], [0, 1])
        data, found = replacement.receive_descriptors(theirs)
    assert (data, [os.get_inheritable(each) for each in found]) == (b"2", [False, False])
    for each in found:
        os.close(each)


@pytest.mark.parametrize("problem", ["format", "seals"])
def test_only_a_sealed_state_of_a_known_format_is_read(monkeypatch: pytest.MonkeyPatch, problem: str) -> None:
    if problem == "format":
        monkeypatch.setattr(replacement, "FORMAT", 98)
        fd = replacement.write_state("1", b"")
        monkeypatch.setattr(replacement, "FORMAT", FORMAT)
    else:
        fd = os.memfd_create("state")
        os.write(fd, json.dumps({"format": FORMAT, "version": "1"}).encode() + b"\n")
    with pytest.raises(CannotReplace, match="98" if problem == "format" else "sealed"):
        replacement.read_state(fd)
