"""The examples run."""

from __future__ import annotations

import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path

from tests.e2e.harness import running
from tests.example_server import TEST_SERVER

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_editor_example_works_with_the_bridge(tmp_path: Path) -> None:
    """Run an MCP client without knowledge of mcpd with the command that `mcpctl install` writes."""
    server = {"command": sys.executable, "args": [TEST_SERVER]}
    bridge = [sys.executable, "-m", "ctl", "bridge", "--client", "test"]
    with running(tmp_path, {"one": server, "two": server}) as daemon:
        daemon.wait_connected("one", "two")
        done = subprocess.run(
            [sys.executable, str(EXAMPLES / "editor.py"), "--call", "two__add", '{"a": 1, "b": 2}', *bridge],
            env={**daemon.environ, "MCPD_SOCKET": daemon.socket},
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert done.returncode == 0, done.stderr
    assert "10 tools: 5 of one, 5 of two\ntwo__add: 3\n" in done.stdout


def test_ten_line_client_gets_a_response(tmp_path: Path) -> None:
    """This is the first example that a programmer copies from the documentation."""
    server = {"command": sys.executable, "args": [TEST_SERVER]}
    with running(tmp_path, {"test": server}) as daemon:
        done = subprocess.run(
            [sys.executable, str(EXAMPLES / "client.py")],
            env=daemon.environ,
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert "'output': '3'" in done.stdout, done.stderr


def run_with_the_time_server(tmp_path: Path, example: str, *arguments: str) -> str:
    """Return what the example prints with `mcp-server-time`, the server that its docstring names."""
    program = Path(sys.executable).with_name("mcp-server-time")
    time = {"command": str(program), "args": ["--local-timezone", "UTC"]}
    with running(tmp_path, {"time": time}) as daemon:
        daemon.wait_connected("time")
        done = subprocess.run(
            [sys.executable, str(EXAMPLES / example), *arguments],
            env=daemon.environ,
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_trio_example_prints_the_time_in_each_zone(tmp_path: Path) -> None:
    """A zone that does not exist does not prevent the other answers."""
    zones = ("Asia/Tokyo", "America/New_York", "Mars/Olympus")
    lines = dict(
        line.split(": ", 1)
        for line in run_with_the_time_server(tmp_path, "agent_trio.py", *zones).splitlines()
    )
    assert set(lines) == set(zones)
    tokyo, new_york = (datetime.fromisoformat(lines[zone]) for zone in zones[:2])
    assert tokyo.utcoffset() == timedelta(hours=9)
    assert abs(tokyo - new_york) < timedelta(minutes=2)
    assert "Mars/Olympus" in lines["Mars/Olympus"]


def test_asyncio_example_answers_the_question(tmp_path: Path) -> None:
    said = run_with_the_time_server(tmp_path, "agent_asyncio.py", "What time is it in Tokyo?")
    assert "Asia/Tokyo" in said
    assert "+09:00" in said
