"""Errors for commands that cannot be started."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
import trio

from mcpd.io import turns
from mcpd.model.server_spec import StdioSpec
from mcpd.transports.child_process import CannotStart, Child, prepare_launch


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A directory with a program, a file that is not executable, and a directory."""
    (tmp_path / "npx").write_text("#!/bin/sh\n")
    (tmp_path / "npx").chmod(0o755)
    (tmp_path / "text").write_text("hello")
    (tmp_path / "there").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (
            "npx -y @scope/server",
            "no program named 'npx -y @scope/server'; to run 'npx', move the rest to",
        ),
        ("npx server", "no program named 'npx server'; to run 'npx', move the rest to `args`"),
        ("{tools}/npx -y it", "no program named '{tools}/npx -y it'; to run '{tools}/npx', move the rest"),
        ("uvx it", "command not found: uvx it (set `command` to its full path"),
        ("{tools}/my server", "there is no file {tools}/my server; correct `command`"),
        ("{tools}/there", "{tools}/there is a directory; set `command` to a program"),
        ("{tools}/text", "{tools}/text is not executable; `chmod +x` it"),
    ],
)
def test_unusable_command_is_explained(tools: Path, command: str, words: str) -> None:
    """Users often write a whole command line in `command`."""
    with pytest.raises(CannotStart) as refused:
        prepare_launch(StdioSpec(name="it", command=command.format(tools=tools)), {"PATH": str(tools)}, "")
    assert words.format(tools=tools) in str(refused.value)


@pytest.mark.parametrize(("cwd", "words"), [("text", "is a file"), ("nowhere", "does not exist")])
def test_unusable_directory_is_explained(tools: Path, cwd: str, words: str) -> None:
    with pytest.raises(CannotStart, match=f"its directory {tools}/{cwd} {words}"):
        prepare_launch(StdioSpec(name="it", command="npx", cwd=str(tools / cwd)), {"PATH": str(tools)}, "")


def reading_stderr(fd: int) -> Child:
    """Return the part of a child that reads its stderr."""
    child = object.__new__(Child)
    child._stderr, child._stderr_drained = fd, trio.Event()
    return child


async def test_stderr_is_handled_in_small_portions() -> None:
    """64 KiB of newlines are 64,000 lines, and other tasks run meanwhile."""
    reads, writes = os.pipe()
    os.set_blocking(reads, False)
    sent = b"".join(b"%d\n" % number for number in range(10_000))
    os.write(writes, sent)
    os.close(writes)
    portions: list[bytes] = []
    with trio.fail_after(30):
        await reading_stderr(reads).pump_stderr(portions.append)
    os.close(reads)
    assert b"".join(portions) == sent
    assert max(map(len, portions)) <= 4096


async def test_what_was_read_of_stderr_is_kept_when_the_process_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turns, "MAX_TURN", 0.0)
    reads, writes = os.pipe()
    os.set_blocking(reads, False)
    sent = b"x" * 20_000
    os.write(writes, sent)
    portions: list[bytes] = []
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:

            def sink(portion: bytes) -> None:
                portions.append(portion)
                nursery.cancel_scope.cancel()

            nursery.start_soon(reading_stderr(reads).pump_stderr, sink)
    os.close(reads)
    os.close(writes)
    assert [len(portion) for portion in portions] == [4096, 20_000 - 4096]


def test_signal_says_whether_a_process_of_the_group_is_left() -> None:
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as process:
        child = object.__new__(Child)
        child.pid = process.pid
        assert child.signal_group(0)
        assert child.signal_group(signal.SIGKILL)
        process.wait()
        assert not child.signal_group(0)
