"""Why the systemd service is down, by the properties that systemd shows."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ctl.daemon import systemd
from ctl.daemon.process import service_error
from ctl.daemon.systemd import service_failure


@pytest.mark.parametrize(
    ("unit", "reason", "step"),
    [
        ({"Result": "exit-code", "ExecMainStatus": "2"}, "it refused its configuration", "mcpctl edit, "),
        (
            {"Result": "exit-code", "ExecMainStatus": "200"},
            "exit-code, exit status 200: last words",
            "systemctl --user cat mcpd ",
        ),
        (
            {"Result": "exit-code", "ExecMainStatus": "78"},
            "exit-code, exit status 78: last words",
            "mcpctl daemon logs, ",
        ),
        ({"Result": "watchdog"}, "watchdog: last words", "mcpctl daemon logs, "),
        (
            {"LoadState": "bad-setting", "LoadError": 'org.x.Bad "Unit mcpd.service has a bad setting."'},
            "Unit mcpd.service has a bad setting.",
            "systemd-analyze --user verify mcpd.service ",
        ),
        ({"LoadState": "masked"}, "its unit is masked", "systemctl --user unmask mcpd.service, "),
    ],
)
def test_failure_has_a_reason_and_a_next_step(
    unit: dict[str, str], reason: str, step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal has the last words of a daemon that ran."""
    journal = tmp_path / "journalctl"
    journal.write_text("#!/bin/sh\necho last words\n")
    journal.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = service_failure({"LoadState": "loaded", "ActiveState": "failed", **unit})
    assert found is not None
    assert found[0] == reason
    assert found[1].startswith(step)


@pytest.mark.parametrize(
    ("result", "cause"),
    [
        ("resources", "Failed to load environment files: No such file or directory"),
        ("signal", "Main process exited, code=killed, status=9/KILL"),
    ],
)
def test_reason_is_the_line_that_says_why(
    result: str, cause: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As systemd 252 logs it after the last of five attempts."""
    lines = [
        f"mcpd.service: {cause}",
        "mcpd.service: Failed to run 'start' task: No such file or directory",
        f"mcpd.service: Failed with result '{result}'.",
        "Failed to start mcpd.service - MCP connection daemon.",
        "mcpd.service: Scheduled restart job, restart counter is at 5.",
        "Stopped mcpd.service - MCP connection daemon.",
        "mcpd.service: Start request repeated too quickly.",
        f"mcpd.service: Failed with result '{result}'.",
        "Failed to start mcpd.service - MCP connection daemon.",
    ]
    (tmp_path / "lines").write_text("\n".join(lines))
    journal = tmp_path / "journalctl"
    journal.write_text(f"#!/bin/sh\ncat {tmp_path}/lines\n")
    journal.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = service_failure({"LoadState": "loaded", "ActiveState": "failed", "Result": result})
    assert found is not None
    assert found[0] == f"{result}: {cause}"


def test_error_of_a_daemon_that_ran_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have run the request, which the error for a lost connection says."""
    monkeypatch.setattr(systemd, "manages_socket", lambda _: True)
    unit = {"ActiveState": "activating", "Result": "signal", "ExecMainStatus": "9"}
    monkeypatch.setattr(systemd, "service_properties", lambda: unit)
    assert service_error("/run/s") is None
    unit |= {"Result": "exit-code", "ExecMainStatus": "203"}
    cause = service_error("/run/s")
    assert cause is not None
    assert "exit status 203" in cause.message
