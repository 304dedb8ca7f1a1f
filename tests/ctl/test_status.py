"""`mcpctl status`: the table, one server in detail, and the fast path."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.ctl.conftest import Mcpctl
from tests.ctl.fake_daemon import FakeDaemon, detail, failure, server, status

ESCAPES = "\x1b[31mred\x1b[0m \x1b]0;title\x07 \u202eevil\x9b2J"


@pytest.mark.parametrize("argv", [["status", "--json"], ["--json", "status"], ["status"]])
def test_json_option_is_accepted_in_three_places(daemon: FakeDaemon, mcpctl: Mcpctl, argv: list[str]) -> None:
    """Before the command, after it, or as MCPCTL_OUTPUT."""
    assert mcpctl(*argv, MCPCTL_OUTPUT="json" if "--json" not in argv else "").json()["servers"] == []


def test_fast_path_and_full_command_line_print_the_same(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """`--` sends a plain status to the full command line."""
    daemon.answers["mcpd/status"] = status(server())
    daemon.answers["mcpd/server"] = detail(server())
    assert mcpctl("status") == mcpctl("status", "--")
    assert mcpctl("status", "time") == mcpctl("status", "--", "time")


def test_text_from_servers_is_sanitized(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """In the table and in the details, even if colour is forced."""
    bad = server("time", "failed", last_error=failure(ESCAPES, stderr=[ESCAPES]), warnings=[ESCAPES])
    daemon.answers["mcpd/status"] = status(bad)
    daemon.answers["mcpd/server"] = detail(bad, log=[ESCAPES])
    for out in (mcpctl("status").out, mcpctl("status", "time").out):
        assert out.isprintable() or {c for c in out if not c.isprintable()} == {"\n"}
        assert "red evil2J" in out
    colored = mcpctl("status", "time", FORCE_COLOR="1").out
    assert "\x1b[31mred" not in colored.replace("\x1b[31mred evil2J\x1b[0m", "")
    assert "\u202e" not in colored
    assert "\x07" not in colored


@pytest.mark.parametrize(
    ("word", "code"),
    [("connected", 0), ("idle", 0), ("failed", 6), ("pending", 6), ("disabled", 6), ("needs-auth", 4)],
)
def test_exit_code_of_status_shows_readiness(
    daemon: FakeDaemon, mcpctl: Mcpctl, word: str, code: int
) -> None:
    """Scripts need not parse the output."""
    daemon.answers["mcpd/server"] = detail(server("time", word))
    assert mcpctl("status", "time").code == code
    assert mcpctl("status", "time", "--json").code == code


def test_fast_path_imports_neither_click_nor_the_daemon(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """Each of these imports would take longer than the rest of the run."""
    heavy = [
        "click",
        "attrs",
        "attr",
        "cattrs",
        "trio",
        "msgspec",
        "rich",
        "mcpd.model",
        "typing",
        "datetime",
        "difflib",
        "json",
        "re",
        "enum",
    ]
    script = (
        "import sys; from ctl.main import run; import os; code = run(['status'], os.environ);"
        f"print([name for name in {heavy!r} if name in sys.modules], file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env={"MCPD_SOCKET": mcpctl.socket}, capture_output=True, timeout=90
    )
    assert (done.returncode, done.stderr) == (0, b"[]\n")


def test_json_suggests_the_same_next_step_as_the_text(
    mcpctl: Mcpctl, daemon: FakeDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a terminal knows where its user's programs are."""
    missing = server("time", "failed", last_error=failure("command not found: its-program", kind="spawn"))
    daemon.answers["mcpd/server"] = detail(
        missing, command=["its-program"], executable=None, next="mcpctl why time"
    )
    program = tmp_path / "its-program"
    program.write_text("")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    shown = mcpctl("status", "time").out.splitlines()[-1].removeprefix("next: ")
    assert shown.startswith("mcpctl daemon restart   (uses the PATH of this shell")
    assert mcpctl("status", "time", "--json").json()["next"] == shown
    assert mcpctl("status", "time", "git", "--json").json()["servers"][1]["next"] == shown
