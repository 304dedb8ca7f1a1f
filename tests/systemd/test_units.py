"""The two unit files, checked by systemd itself, and the directives that must stay."""

from __future__ import annotations

import configparser
import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
UNITS = ROOT / "systemd"


@pytest.fixture
def analyze(tmp_path: Path) -> list[str]:
    """Run `systemd-analyze` in a suitable environment."""
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd-analyze is not installed")
    return ["env", f"XDG_RUNTIME_DIR={tmp_path}", "systemd-analyze"]


@pytest.mark.parametrize("unit", ["mcpd.service", "mcpd.socket"])
def test_systemd_accepts_the_unit_without_a_warning(analyze: list[str], unit: str) -> None:
    """Without --recursive-errors, a misspelled key is only a warning with exit status 0."""
    argv = [*analyze, "--user", "--man=no", "--recursive-errors=no", "verify", str(UNITS / unit)]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_misspelled_key_is_an_error(analyze: list[str], tmp_path: Path) -> None:
    """This proves that the test above can fail."""
    (tmp_path / "mcpd.socket").write_text((UNITS / "mcpd.socket").read_text())
    wrong = tmp_path / "mcpd.service"
    wrong.write_text((UNITS / "mcpd.service").read_text().replace("KillMode=", "KilMode="))
    argv = [*analyze, "--user", "--man=no", "--recursive-errors=no", "verify", str(wrong)]
    assert subprocess.run(argv, capture_output=True).returncode != 0


def test_the_service_is_hardened_as_far_as_its_children_allow(analyze: list[str]) -> None:
    """The exposure is 8.5, and 9.6 without hardening. Users' tools need most of the rest (see the unit)."""
    argv = [*analyze, "security", "--offline=yes", "--threshold=86", str(UNITS / "mcpd.service")]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-300:]


def test_the_strict_drop_in_halves_the_exposure(analyze: list[str], tmp_path: Path) -> None:
    """For servers that are ordinary programs."""
    directory = tmp_path / "mcpd.service.d"
    directory.mkdir()
    shutil.copy(UNITS / "strict.conf", directory)
    shutil.copy(UNITS / "mcpd.service", tmp_path)
    argv = [*analyze, "security", "--offline=yes", "--threshold=45", "mcpd.service"]
    environ = {**os.environ, "SYSTEMD_UNIT_PATH": f"{tmp_path}:"}
    done = subprocess.run(argv, capture_output=True, text=True, env=environ)
    assert done.returncode == 0, done.stdout[-300:]


def test_directives_that_other_parts_rely_on_are_set() -> None:
    """They ensure that no process is left, useless restarts are avoided, and the socket stays."""
    service, socket = keys("mcpd.service"), keys("mcpd.socket")
    expected = {
        "Type": "notify",
        "NotifyAccess": "main",
        "KillMode": "mixed",
        "TimeoutStopSec": "30",
        "WatchdogSec": "30",
        "Restart": "on-failure",
        "RestartSec": "1",
        "RestartPreventExitStatus": "2 78",
        "OOMPolicy": "continue",
        "UMask": "0077",
        "LimitCORE": "0",
        "NoNewPrivileges": "yes",
        "RuntimeDirectoryPreserve": "yes",
        "ExecReload": "/usr/bin/env mcpctl --no-start --socket %t/mcpd/mcpd.sock reload",
    }
    assert {key: service[key] for key in expected} == expected
    assert socket["ListenStream"] == "%t/mcpd/mcpd.sock"
    assert (socket["SocketMode"], socket["DirectoryMode"]) == ("0600", "0700")


def test_no_unit_kills_less_than_the_whole_group() -> None:
    """KillMode=process would leave the servers running when the daemon is killed."""
    for unit in UNITS.iterdir():
        assert "KillMode=process" not in unit.read_text()


def test_the_units_are_part_of_the_wheel() -> None:
    """`mcpctl daemon install` must work from an installed package too."""
    import tomllib

    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    included = build["targets"]["wheel"].get("force-include", {})
    assert included == {f"systemd/{name}": f"ctl/units/{name}" for name in sorted(os.listdir(UNITS))}


def keys(unit: str) -> dict[str, str]:
    parser = configparser.ConfigParser(interpolation=None, strict=False, delimiters=["="])
    parser.optionxform = str  # type: ignore[assignment, method-assign]  # systemd's keys have capitals
    parser.read(UNITS / unit)
    return {key: value for section in parser.sections() for key, value in parser[section].items()}
