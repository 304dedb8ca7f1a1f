"""The checks of `mcpctl doctor`, and the systemd units that it judges."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ctl.daemon import systemd
from ctl.explain import checks
from ctl.explain.daemon import DaemonFacts
from ctl.explain.doctor import server_finding
from mcpd import __version__
from tests.ctl.conftest import Mcpctl
from tests.ctl.fake_daemon import detail, failure, server


def test_second_connection_that_fails_is_reported() -> None:
    """The first one of the server works."""
    first = {"revision": "2026-07-28", "status": "connected", "pid": 7}
    second = {**first, "status": "pending", "last_error": failure(summary="exited (1): no module")}
    found = server_finding(
        cast("Any", detail(server("time", connections=[first, second]))), cast("Any", {"ms": 1.0}), None
    )
    assert (found.result, found.message) == (
        checks.WARN,
        "connected, but its second connection fails: exited (1): no module",
    )
    assert found.next == "mcpctl logs time"


def test_missing_programs_of_servers_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a server is used for the first time. What cannot be known is not judged."""
    monkeypatch.setenv("HOME", str(tmp_path))
    definitions: dict[str, dict[str, object]] = {
        "here": {"command": "sh"},
        "gone": {"command": "no-such-program"},
        "own": {"command": "sh", "env": {"PATH": str(tmp_path)}},
        "off": {"command": "no-such-program", "disabled": True},
        "variable": {"command": "${TOOLS}/x"},
        "relative": {"command": "./x"},
        "remote": {"url": "https://mcp.example/"},
    }
    *missing, found = checks.check_programs(definitions, "/usr/bin:/bin")
    assert [each.message.partition(":")[0] for each in missing] == ["gone", "own"]
    assert all(each.result == "warning" and each.next.startswith("mcpctl edit") for each in missing)
    assert (found.result, found.message) == ("ok", "1 server with a program that exists")


def test_daemon_that_was_replaced_is_reported() -> None:
    """Another commit may have the same version. mcpd of another installation is not judged."""
    facts, results = DaemonFacts("/none"), []
    script = [sys.executable, "-c", "input(print(flush=True))"]
    with subprocess.Popen(script, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as mine:
        assert mine.stdout is not None
        mine.stdout.readline()  # before that, it may have no command line yet
        for year, pid in ((2020, mine.pid), (9999, mine.pid), (2020, 1)):
            started = f"{year}-01-01T00:00:00Z"
            facts.version = cast("Any", {"version": __version__, "pid": pid, "started_at": started})
            (found,) = checks.check_daemon(facts, has_bad_socket=False)
            results.append((found.result, found.next))
        mine.kill()
    assert results == [(checks.WARN, "mcpctl daemon upgrade"), (checks.OK, ""), (checks.OK, "")]


def test_read_only_file_system_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other permissions would not help."""
    monkeypatch.setattr(os, "access", lambda *_: False)
    (usual,) = checks.check_directories({"state directory": str(tmp_path)})
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=os.ST_RDONLY))
    (mounted,) = checks.check_directories({"state directory": str(tmp_path)})
    assert ("chmod 700" in usual.next, "mount its file system" in mounted.next) == (True, True)


def test_outdated_units_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a reinstallation or upgrade, the service may start an old path."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    ours = ["/usr/bin/env", "mcpd"]
    systemd.write_units(ours, "/home/me/100% mine/bin:/usr/bin")
    assert not systemd.is_outdated(ours)
    assert systemd.is_outdated(["/opt/mcpd"])
    (service, socket) = systemd.write_units(ours, "/usr/bin")
    service.write_text(service.read_text().replace("KillMode=mixed", "KillMode=process"))
    assert systemd.is_outdated(ours)
    systemd.write_units(ours, "/usr/bin")
    socket.unlink()
    assert systemd.is_outdated(ours)


def test_unit_of_another_program_is_left_alone(
    tmp_path: Path, mcpctl: Mcpctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ahodges22/mcpd installs a unit of the same name."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    unit = systemd.unit_directory() / "mcpd.service"
    unit.parent.mkdir(parents=True)
    unit.write_text(
        "[Unit]\nDescription=mcpd, the local MCP proxy daemon\n[Service]\nExecStart=%h/bin/mcpd\n"
    )
    before = unit.read_bytes()
    assert not systemd.is_installed()
    ran = mcpctl("daemon", "install")
    assert ran.code == 1
    assert f"{unit} belongs to another program named mcpd" in ran.err
    assert "nothing" in mcpctl("daemon", "uninstall").out or unit.exists()
    assert unit.read_bytes() == before
    monkeypatch.setattr(systemd, "is_available", lambda: True)
    (finding,) = checks.check_service("/run/mcpd.sock")
    assert (finding.result, "another program" in finding.message) == ("warning", True)
    unit.unlink()
    systemd.write_units(["/opt/mcpd"], "/usr/bin")
    assert systemd.is_installed()


def test_doctor_reports_unsafe_configuration_permissions(tmp_path: Path) -> None:
    """Writers can run commands, and readers see tokens. The suggested fixes work."""
    file = tmp_path / "my config.json"
    file.write_text('{"mcpServers": {"it": {"env": {"TOKEN": "hunter-of-tokens"}}}}')
    both = ["failure", "warning"]
    for mode, results in (
        (0o600, []),
        (0o660, []),
        (0o646, both),
        (0o644, ["warning"]),
        (0o602, ["failure"]),
    ):
        file.chmod(mode)
        found = list(checks.check_file_permissions(str(file), ["hunter-of-tokens", "elsewhere"]))
        assert [finding.result for finding in found] == results
        for finding in found:
            subprocess.run(finding.next, shell=True, check=True)
        assert not list(checks.check_file_permissions(str(file), ["hunter-of-tokens"]))
    file.chmod(0o644)
    assert not list(checks.check_file_permissions(str(file), []))
    assert not list(checks.check_file_permissions(str(tmp_path / "none"), []))


def test_doctor_reports_a_configuration_directory_that_others_can_write(tmp_path: Path) -> None:
    """They could replace the file, whatever its own permissions are. The suggested fix works."""
    directory = tmp_path / "my mcpd"
    directory.mkdir(mode=0o700)
    file = directory / "config.json"
    file.write_text("{}")
    file.chmod(0o600)
    link = tmp_path / "link.json"
    link.symlink_to(file)
    for mode, is_safe in ((0o755, True), (0o1777, True), (0o777, False), (0o707, False)):
        for path in (file, link, directory / "none.json"):
            directory.chmod(mode)
            found = list(checks.check_file_permissions(str(path), []))
            assert [finding.result for finding in found] == ([] if is_safe else ["failure"]), oct(mode)
            for finding in found:
                assert f"{directory} is writable by other users" in finding.message
                subprocess.run(finding.next, shell=True, check=True)
            assert not list(checks.check_file_permissions(str(path), []))
