"""Files with the expected output of commands. `pytest tests/ctl --update` writes them anew."""

from __future__ import annotations

import json
import os
import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import pytest

from mcpd import __version__
from tests.ctl.conftest import Mcpctl
from tests.ctl.fake_daemon import FakeDaemon

GOLDEN = Path(__file__).parent / "golden"
NOW = 1795242600.0 + 200
"""200 seconds after `fake_daemon.NOW`."""


@attrs.frozen
class Case:
    """Commands that are run one after the other, and the daemon's answers to them."""

    name: str
    commands: Sequence[str]
    answers: Mapping[str, object] = attrs.Factory(dict)
    files: Mapping[str, str] = attrs.Factory(dict)
    """Files in the current directory."""

    def run(self, daemon: FakeDaemon, mcpctl: Mcpctl) -> str:
        daemon.answers |= self.answers
        return "\n".join(self._run_one(line, daemon, mcpctl) for line in self.commands)

    def _run_one(self, line: str, daemon: FakeDaemon, mcpctl: Mcpctl) -> str:
        asked = len(daemon.requests)
        ran = mcpctl(*shlex.split(line))
        parts = [f"$ mcpctl {line}\n", ran.out]
        parts += [f"stderr: {text}\n" for text in ran.err.splitlines()]
        parts += [f"exit {ran.code}\n"] if ran.code else []
        parts += [f"sent: {method} {_params(params)}\n" for method, params in daemon.requests[asked:]]
        return "".join(parts)


def _params(params: Mapping[str, Any]) -> str:
    return json.dumps({name: value for name, value in params.items() if name != "_meta"})


def check(
    case: Case,
    daemon: FakeDaemon,
    mcpctl: Mcpctl,
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    update: bool,
) -> None:
    """Compare what the commands print and send with the file of the case. Times are relative to NOW."""
    clock = SimpleNamespace(**{**vars(time), "time": lambda: NOW})
    monkeypatch.setattr("ctl.cli.text.time", clock)
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "PATH"):
        monkeypatch.setenv(name, str(place))
    monkeypatch.chdir(place)
    for name, text in case.files.items():
        (place / name).write_text(text)
    received = case.run(daemon, mcpctl).replace(str(place), "@DIR@").replace(__version__, "@VERSION@")
    received = received.replace(str(daemon.path), "@SOCKET@").replace(f"try-{os.getpid()}", "try-@PID@")
    file = GOLDEN / f"{case.name}.txt"
    if update:
        file.write_text(received)
    assert received == file.read_text()
