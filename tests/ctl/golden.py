"""Files with command lines and their expected output. `pytest tests/ctl --update` writes the output anew.

To add a command, add a line `$ mcpctl …` to a file and update it.
"""

from __future__ import annotations

import json
import os
import shlex
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mcpd import __version__
from tests.ctl.conftest import Mcpctl
from tests.ctl.fake_daemon import FakeDaemon

GOLDEN = Path(__file__).parent / "golden"
NOW = 1795242600.0 + 200
"""200 seconds after `fake_daemon.NOW`."""
_PROMPT = "$ mcpctl "


def check(
    name: str,
    daemon: FakeDaemon,
    mcpctl: Mcpctl,
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    update: bool,
) -> None:
    """Run the commands of a file in `place`, and compare what they print and send. The time is NOW."""
    monkeypatch.setattr("ctl.cli.text.time", SimpleNamespace(**{**vars(time), "time": lambda: NOW}))
    for variable in ("HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "PATH"):
        monkeypatch.setenv(variable, str(place))
    monkeypatch.chdir(place)
    file = GOLDEN / f"{name}.txt"
    expected = file.read_text()
    commands = [line[len(_PROMPT) :] for line in expected.splitlines() if line.startswith(_PROMPT)]
    received = "\n".join(_run(line, daemon, mcpctl) for line in commands)
    for text, sign in (
        (str(place), "@DIR@"),
        (str(daemon.path), "@SOCKET@"),
        (__version__, "@VERSION@"),
        (f"try-{os.getpid()}", "try-@PID@"),
    ):
        received = received.replace(text, sign)
    if update:
        file.write_text(received)
    else:
        assert received == expected


def _run(line: str, daemon: FakeDaemon, mcpctl: Mcpctl) -> str:
    asked = len(daemon.requests)
    ran = mcpctl(*shlex.split(line))
    parts = [f"{_PROMPT}{line}\n", ran.out]
    parts += [f"stderr: {text}\n" for text in ran.err.splitlines()]
    parts += [f"exit {ran.code}\n"] if ran.code else []
    parts += [f"sent: {method} {_params(params)}\n" for method, params in daemon.requests[asked:]]
    return "".join(parts)


def _params(params: Mapping[str, Any]) -> str:
    return json.dumps({name: value for name, value in params.items() if name != "_meta"})
