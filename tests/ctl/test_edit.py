"""`mcpctl edit`: the file is replaced only by a valid one, unless the user insists."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
GOOD = '{"mcpServers": {"a": {"command": "x"}}}'
BAD = '{"mcpServers": {"a": {"comand": "x"}}}'


def edit(home: Path, texts: list[str], answers: list[str], socket: Path | None = None) -> tuple[int, str]:
    """Run `mcpctl edit` on a terminal with an editor that writes these texts in turn."""
    for index, text in enumerate(texts):
        (home / f"{index}.text").write_text(text)
    editor = home / "editor"
    editor.write_text(
        f"#!/bin/sh\nn=$(cat {home}/count 2>/dev/null || echo 0)\n"
        f'[ ! -e "{home}/$n.text" ] || cp "{home}/$n.text" "$1"\n'
        f"echo $((n + 1)) > {home}/count\n"
    )
    editor.chmod(0o755)
    environ = {
        "HOME": str(home),
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
        "MCPD_SOCKET": str(socket or home / "none.sock"),
        "VISUAL": str(editor),
        "TERM": "dumb",
    }
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "ctl", "edit"], stdin=theirs, stdout=theirs, stderr=theirs, env=environ
    )
    os.close(theirs)
    received, seen, asked, deadline = b"", "", 0, time.monotonic() + 120
    try:
        while time.monotonic() < deadline:
            if not select.select([ours], [], [], 0.1)[0]:
                continue
            try:
                received += os.read(ours, 65536)
            except OSError:
                break  # its end of the terminal is closed: it has ended
            seen = received.decode("utf-8", "ignore")  # the last character may not be complete yet
            if seen.count("[e]dit again") > asked:
                os.write(ours, answers[asked].encode() + b"\n")
                asked += 1
        return process.wait(90), seen
    finally:
        process.kill()
        process.wait()
        os.close(ours)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / ".config" / "mcpd" / "config.json"
    path.parent.mkdir(parents=True)
    path.write_text("// mine\n" + GOOD)
    return path


def test_valid_edit_is_saved_with_comments(tmp_path: Path, file: Path) -> None:
    """The file is saved byte for byte."""
    code, seen = edit(tmp_path, ["// better\n" + GOOD], [])
    assert (code, file.read_text()) == (0, "// better\n" + GOOD), seen
    assert "mcpd is not running" in seen


def test_invalid_edit_can_be_edited_again(tmp_path: Path, file: Path) -> None:
    """The draft is kept, as in visudo."""
    code, seen = edit(tmp_path, [BAD, GOOD], ["e"])
    assert (code, file.read_text()) == (0, GOOD), seen
    assert f"error: {file} is invalid\r\n" in seen
    assert "did you mean 'command'?" in seen


@pytest.mark.parametrize(("answer", "kept"), [("d", "// mine\n" + GOOD), ("k", BAD)])
def test_invalid_edit_is_discarded_or_kept_on_request(
    tmp_path: Path, file: Path, answer: str, kept: str
) -> None:
    """The user decides."""
    code, seen = edit(tmp_path, [BAD], [answer])
    assert file.read_text() == kept, seen
    assert code == (1 if answer == "d" else 0)


def test_first_edit_creates_a_valid_configuration(tmp_path: Path) -> None:
    """The directory is created with private permissions."""
    code, seen = edit(tmp_path, [GOOD], [])
    path = tmp_path / ".config" / "mcpd" / "config.json"
    assert code == 0, seen
    assert json.loads(path.read_text()) == json.loads(GOOD)
    assert path.stat().st_mode & 0o777 == 0o600


def test_edit_is_preserved_when_the_file_cannot_be_written() -> None:
    """For example when the disk is full."""
    from ctl.cli.errors import CtlError
    from ctl.cli.invocation import CliContext
    from ctl.commands.config_edit import _save

    place = Path("/proc/self/config.json")  # where nobody can make a file, root neither
    with pytest.raises(CtlError, match=r"cannot write .*; your version was saved as ") as refused:
        _save(CliContext({}), place, None, GOOD.encode(), False)
    kept = Path(refused.value.message.rpartition(" ")[2])
    assert kept.read_text() == GOOD
    assert kept.stat().st_mode & 0o777 == 0o600
    kept.unlink()
