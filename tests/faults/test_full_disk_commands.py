"""mcpctl on a full disk: each command that writes reports an error and leaves its files unchanged."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.harness import BOUND, private_environment
from tests.faults.disk import Disk, small_disk

pytestmark = pytest.mark.root

CONFIG = '{\n  // mine\n  "mcpServers": {"calm": {"command": "sleep", "args": ["1"]}}\n}\n'
CURSOR = {"mcpServers": {"time": {"command": "uvx", "env": {"API_TOKEN": "sk-live-0123456789abcdef0123"}}}}
COMMANDS = {
    "secret set": ("new-secret-value", "secret", "set", "NEW"),
    "secret remove": ("", "secret", "remove", "OLD", "--yes"),
    "install": ("", "install", "cursor"),
    "import": ("", "import", "cursor", "--yes"),
    "daemon install": ("", "--no-start", "daemon", "install"),
    "doctor --bundle": ("", "doctor", "--no-shell", "--bundle", "report.tar.gz"),
}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with small_disk(tmp_path / "home") as made:
        yield made


@pytest.mark.parametrize("name", COMMANDS)
def test_write_error_is_reported_and_no_file_is_lost(disk: Disk, tmp_path: Path, name: str) -> None:
    """Old files stay complete, including those of other programs; no partial file is left; the code is 1."""
    home = disk.path
    for path, text in {
        "config/mcpd/config.json": CONFIG,
        "config/mcpd/secrets.json": '{"OLD": "old"}',
        ".cursor/mcp.json": json.dumps(CURSOR),
    }.items():
        (home / path).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        (home / path).write_text(text)
        (home / path).chmod(0o600)
    before = disk.files()
    disk.fill()
    said, *argv = COMMANDS[name]
    (tmp_path / "elsewhere").mkdir()
    environ = {**private_environment(tmp_path / "elsewhere"), "HOME": str(disk.place)}
    places = {f"XDG_{which}_HOME": str(disk.place / which.lower()) for which in ("CONFIG", "STATE", "CACHE")}
    done = subprocess.run(
        [*disk.enter, "env", f"--chdir={disk.place}", sys.executable, "-m", "ctl", *argv],
        env={**environ, **places, "MCPD_NO_START": "1", "PYTHONPATH": str(Path(__file__).parents[2])},
        input=said,
        capture_output=True,
        text=True,
        timeout=2 * BOUND,
    )
    assert done.returncode == 1, done
    assert "Traceback" not in done.stderr
    assert "No space left on device" in done.stderr + done.stdout, done
    assert disk.files() == before
