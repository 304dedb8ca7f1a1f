"""`mcpctl doctor`: who can change or read the configuration."""

from __future__ import annotations

import subprocess
from pathlib import Path

from ctl.explain import checks


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
            subprocess.run(finding.fix, shell=True, check=True)
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
                subprocess.run(finding.fix, shell=True, check=True)
            assert not list(checks.check_file_permissions(str(path), []))
