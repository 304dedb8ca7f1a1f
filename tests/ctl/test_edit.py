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

from mcpd.config.load_at_start import load_at_start, save_last_valid
from mcpd.config.loader import load
from tests.ctl.conftest import Mcpctl

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


RULES = {"maxStarts": 3, "policies": [{"tools": ["delete*"], "decision": "deny"}]}
CONTENT = {"mcpServers": {"a": {"command": "ä", "env": {"T": "${secret:A}"}}}, "settings": RULES}


def deleted(home: Path, name: str = "config.json", text: str = json.dumps(CONTENT)) -> Path:
    """Return a configuration file that is missing, and was valid."""
    path = home / ".config" / "mcpd" / name
    path.parent.mkdir(parents=True)
    path.write_text(text)
    state = home / ".local" / "state" / "mcpd"
    state.mkdir(parents=True)
    save_last_valid(load(path, {"HOME": str(home)}), state)
    path.unlink()
    return path


def test_deleted_file_is_restored_from_its_last_valid_content(tmp_path: Path) -> None:
    """The editor shows it, and writes nothing itself."""
    path = deleted(tmp_path)
    code, seen = edit(tmp_path, [], [])
    assert code == 0, seen
    assert "is missing; this is its last valid content" in seen
    assert json.loads(path.read_text()) == CONTENT


TOML = """settings.maxStarts = 3
[[settings.policies]]
tools = ["delete*"]
decision = "deny"
[mcpServers.a]
command = "ä"
env.T = "${secret:A}"
"""


@pytest.mark.parametrize(
    ("name", "text"),
    [("config.json", json.dumps(CONTENT)), ("config.yaml", json.dumps(CONTENT)), ("config.toml", TOML)],
)
def test_config_restore_writes_everything_that_a_deleted_file_held(
    tmp_path: Path, mcpctl: Mcpctl, monkeypatch: pytest.MonkeyPatch, name: str, text: str
) -> None:
    """Policies and references to secrets included, in the format of the file."""
    path = deleted(tmp_path, name, text)
    monkeypatch.setenv("HOME", str(tmp_path))
    for variable in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "MCPD_CONFIG"):
        monkeypatch.delenv(variable, raising=False)
    loaded = load_at_start(None, os.environ, tmp_path / ".local" / "state" / "mcpd")
    expected = f"{path} is gone; its 1 server can be restored from a copy; mcpctl config restore"
    assert loaded.warnings == (expected,)
    ran = mcpctl("config", "restore")
    assert (ran.code, ran.out) == (0, f"saved in {path}\n"), ran.err
    assert path.stat().st_mode & 0o777 == 0o600
    restored = load(path, {"HOME": str(tmp_path)})
    assert (restored.definitions, restored.written_settings) == (CONTENT["mcpServers"], RULES)
    ran = mcpctl("config", "restore")
    assert (ran.code, "exists; only a missing file is restored" in ran.err) == (2, True)


def test_config_restore_without_a_copy_writes_nothing(
    tmp_path: Path, mcpctl: Mcpctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for variable in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "MCPD_CONFIG"):
        monkeypatch.delenv(variable, raising=False)
    ran = mcpctl("config", "restore")
    assert (ran.code, "is known" in ran.err) == (5, True)
    assert not (tmp_path / ".config").exists()


def test_copy_of_the_configuration_cannot_be_imported(
    tmp_path: Path, mcpctl: Mcpctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An import reads the files of editors: it would lose policies, and take `${secret:A}` as text."""
    deleted(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    ran = mcpctl("import", str(tmp_path / ".local/state/mcpd/last-valid-config.json"), "--yes")
    assert (ran.code, "mcpctl config restore" in ran.err) == (2, True)


def test_edit_is_preserved_when_the_file_cannot_be_written() -> None:
    """For example when the disk is full."""
    from ctl.commands.config_edit import _save
    from ctl.errors import CtlError
    from ctl.invocation import CliContext

    place = Path("/proc/self/config.json")  # where nobody can make a file, root neither
    with pytest.raises(CtlError, match=r"cannot write .*; your version was saved as ") as refused:
        _save(CliContext({}), place, None, GOOD.encode(), False)
    kept = Path(refused.value.message.rpartition(" ")[2])
    assert kept.read_text() == GOOD
    assert kept.stat().st_mode & 0o777 == 0o600
    kept.unlink()
