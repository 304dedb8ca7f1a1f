"""Commands that check the configuration use the variables of the daemon, and not only those of the shell."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ctl.cli.invocation import CliContext
from ctl.daemon import systemd
from ctl.explain.checks import Finding
from ctl.explain.doctor import run_checks
from tests.ctl.conftest import Mcpctl
from tests.ctl.fake_daemon import FakeDaemon
from tests.ctl.test_edit import edit

TEXT = '{"mcpServers": {"a": {"command": "true", "env": {"X": "${FILEVAR}"}}}}'
UNSET = "the environment variable FILEVAR is not set"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("FILEVAR", raising=False)
    monkeypatch.delenv("MCPD_SERVERS", raising=False)
    path = tmp_path / "c.json"
    path.write_text(TEXT)
    return path


@pytest.fixture
def stopped_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(systemd, "manages_socket", lambda _: True)
    monkeypatch.setattr(systemd, "would_start_service", lambda _: True)
    monkeypatch.setattr(systemd, "is_installed", lambda: True)


def test_path_of_the_configuration_does_not_start_the_service(
    mcpctl: Mcpctl, daemon: FakeDaemon, file: Path, stopped_service: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection would start it. The path is the one in the environment of the service."""
    monkeypatch.setattr(systemd, "service_environment", lambda: {"MCPD_CONFIG": str(file)})
    assert mcpctl("config", "path").out == f"{file}\n"
    assert daemon.requests == []


@pytest.mark.parametrize("state", ["running", "stopped"])
def test_file_that_only_the_unit_names_is_the_one_to_validate(
    mcpctl: Mcpctl, daemon: FakeDaemon, file: Path, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`MCPD_CONFIG` in the unit, which the shell does not have; also after `daemon stop`."""
    monkeypatch.delenv("MCPD_CONFIG", raising=False)
    if state == "running":
        daemon.answers["mcpd/config"] = {"source": str(file), "path": str(file), "servers": {}}
        mine = mcpctl
    else:
        monkeypatch.setattr(systemd, "manages_socket", lambda _: True)
        monkeypatch.setattr(systemd, "socket_is_active", lambda: False)
        monkeypatch.setattr(systemd, "service_environment", lambda: {"MCPD_CONFIG": str(file)})
        mine = Mcpctl("", mcpctl.capsys, {**mcpctl.environ, "MCPD_SOCKET": f"{daemon.path}.none"})
    ran = mine("config", "validate")
    assert mine("config", "path").out == f"{file}\n"
    assert f"{file}: valid, 1 server: a" in ran.out or f"{file} is invalid" in ran.err, ran
    with monkeypatch.context() as shell:
        shell.setenv("MCPD_CONFIG", "/named/by/the/shell.json")
        assert "/named/by/the/shell.json" in mine("config", "validate").err


def configuration(mcpctl: Mcpctl, file: Path) -> list[Finding]:
    environ = {**os.environ, **mcpctl.environ, "MCPD_CONFIG": str(file)}
    report = run_checks(CliContext(environ), environ, shell=False)
    return [each for each in report.findings if each.check == "configuration"]


def test_running_daemon_decides(mcpctl: Mcpctl, daemon: FakeDaemon, file: Path) -> None:
    """It may have variables that the shell lacks, and lack some that the shell has."""
    daemon.answers["mcpd/config/check"] = {"servers": ["a"], "warnings": ["look"], "errors": []}
    ran = mcpctl("config", "validate", str(file))
    assert (ran.code, ran.out, ran.err) == (0, f"{file}: valid, 1 server: a\n", "warning: look\n")
    assert daemon.params_of("mcpd/config/check") == {"path": str(file), "text": TEXT}
    problem = {"path": "$.x", "message": "wrong", "fix": "correct it"}
    daemon.answers["mcpd/config/check"] = {"servers": [], "warnings": [], "errors": [problem]}
    ran = mcpctl("config", "validate", str(file), "--json")
    assert (ran.code, ran.error()["problems"]) == (2, [problem])


def test_edit_accepts_what_the_daemon_accepts(tmp_path: Path, daemon: FakeDaemon, file: Path) -> None:
    """The text of the draft is checked as that of the file."""
    daemon.answers |= {
        "mcpd/config": {"source": str(file), "path": str(file), "generation": 1, "servers": {}},
        "mcpd/config/check": {"servers": ["a"], "warnings": [], "errors": []},
    }
    code, seen = edit(tmp_path, [f"// changed\n{TEXT}"], [], socket=daemon.path)
    assert "invalid" not in seen
    assert file.read_text() == f"// changed\n{TEXT}", (code, seen)
    assert daemon.params_of("mcpd/config/check")["path"] == str(file)


@pytest.mark.usefixtures("stopped_service")
def test_variable_that_only_the_service_has(
    mcpctl: Mcpctl, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the service is stopped, the environment that it will have counts."""
    monkeypatch.setattr(systemd, "service_environment", lambda: {**os.environ, "FILEVAR": "abc"})
    ran = mcpctl("config", "validate", str(file))
    assert (ran.code, ran.err) == (0, "")
    assert [each.result for each in configuration(mcpctl, file)] == ["ok"]


@pytest.mark.usefixtures("stopped_service")
def test_variable_that_the_service_lacks(mcpctl: Mcpctl, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It affects only its server, so the file is valid, but doctor says how to set it."""
    monkeypatch.setattr(systemd, "service_environment", lambda: dict(os.environ))
    ran = mcpctl("config", "validate", str(file))
    assert (ran.code, f"{UNSET} in the environment of the service" in ran.err) == (0, True)
    (finding,) = configuration(mcpctl, file)
    assert (finding.result, "set-environment" in finding.next) == ("failure", True)


def test_daemon_in_the_background_gets_the_environment_of_the_shell(mcpctl: Mcpctl, file: Path) -> None:
    """Without a service, a variable that the shell lacks is an error."""
    ran = mcpctl("config", "validate", str(file))
    assert (ran.code, UNSET in ran.err) == (2, True)
