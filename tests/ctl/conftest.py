"""Fixtures: a scripted daemon, and mcpctl run against it in this process."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from ctl.main import run
from tests.ctl.fake_daemon import FakeDaemon, status


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[FakeDaemon]:
    fake = FakeDaemon(tmp_path / "d.sock")
    fake.answers["mcpd/status"] = status()
    yield fake
    fake.close()


@attrs.frozen
class Ran:
    """The exit code and output of one run of mcpctl."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)

    def error(self) -> Any:
        return json.loads(self.err)["error"]


@attrs.frozen
class Mcpctl:
    """Calls mcpctl with a command line."""

    socket: str
    capsys: pytest.CaptureFixture[str]
    environ: dict[str, str]

    def __call__(self, *argv: str, **environ: str) -> Ran:
        code = run(argv, {**self.environ, **environ})
        out, err = self.capsys.readouterr()
        return Ran(code, out, err)


@pytest.fixture(autouse=True)
def time_zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """UTC-3:30, so that local times and times in UTC differ."""
    monkeypatch.setenv("TZ", "<-0330>3:30")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def mcpctl(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Mcpctl:
    path = str(tmp_path / "d.sock")
    return Mcpctl(path, capsys, {"MCPD_SOCKET": path, "MCPD_NO_START": "1"})
