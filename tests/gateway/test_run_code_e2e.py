"""`run_code` and `mcpctl run`: code in the sandbox calls tools of real servers, and reaches nothing else."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import start
from tests.e2e.harness import Daemon, Json, children, fake, wait_until
from tests.gateway.mcp_client import LEGACY, MODERN, McpClient

__all__ = ["start"]

ROOT = Path(__file__).parents[2]


@pytest.fixture
def filesystem(tmp_path: Path) -> Json:
    """The reference server of npm."""
    program = shutil.which("mcp-server-filesystem", path=str(ROOT / ".npm/node_modules/.bin"))
    if program is None:
        pytest.skip("mcp-server-filesystem is not there: `make npm` installs it")
    (tmp_path / "files").mkdir()
    for number in range(20):
        (tmp_path / f"files/{number}.txt").write_text(f"{number} " * 4000)
    return {"command": program, "args": [str(tmp_path / "files")], "share": "all"}


def sandboxes(daemon: Daemon) -> int:
    found = [Path(f"/proc/{pid}/comm").read_text() for pid in children(daemon.pid)]
    return found.count("monty\n")


def in_flight(daemon: Daemon) -> int:
    return int(daemon.status("fake")["in_flight"])


def run(client: McpClient, code: str) -> tuple[str, bool]:
    result = client.request("tools/call", name="run_code", arguments={"code": code})
    return result["content"][0]["text"], bool(result.get("isError"))


@pytest.mark.parametrize("version", [MODERN, LEGACY[0]])
def test_code_calls_tools_and_returns_what_it_selects(
    start: Any, filesystem: Json, tmp_path: Path, version: str
) -> None:
    daemon = start({"fs": {**filesystem, "resultLimit": 10_000}})
    daemon.wait_connected("fs")
    client = McpClient(daemon, version, profile="*", capabilities={})
    code = f"""
import asyncio
files = [{str(tmp_path / "files")!r} + f"/{{n}}.txt" for n in range(20)]
texts = await asyncio.gather(*[fs__read_text_file(path=file) for file in files])
print(len(texts))
[text["content"].count(str(n)) for n, text in enumerate(texts)][:3]
"""
    text, is_error = run(client, code)
    assert not is_error, text
    assert text == "20\n[4000, 4000, 4000]"
    assert len(daemon.client().request("mcpd/calls", name="read_text_file")["calls"]) == 20


def test_mistakes_are_told_and_failed_tools_raise(start: Any, filesystem: Json, tmp_path: Path) -> None:
    daemon = start({"fs": filesystem, "fake": fake()})
    daemon.wait_connected("fs", "fake")
    client = McpClient(daemon, MODERN, profile="*", capabilities={})
    missing = str(tmp_path / "files/none.txt")
    cases = {
        "fs__read_text_file()": "misses the argument 'path'",
        "fs__read_text_file(path=1)": "path must be of type string, not 1",
        "fs__read_tex_file(path='x')": "no tool is called 'fs__read_tex_file'; did you mean fs__read_",
        f"fs__read_text_file(path={missing!r})": "RuntimeError: ENOENT",
        "def f(": "not valid Python",
        "1/0": "ZeroDivisionError",
        "[fake__echo(a=n) for n in range(201)]": "more than 200 calls; the earlier ones have run",
        "'x' * 100_000": "return less",
        "fake__echo(a={None: 1})": "are not JSON",
        "#" * 32_769: "at most 32768 are accepted",
    }
    for code, expected in cases.items():
        text, is_error = run(client, code)
        assert expected in text, code
        assert is_error
    caught = (
        f"try:\n    fs__read_text_file(path={missing!r})\nexcept RuntimeError as error:\n    print('no file')"
    )
    assert run(client, caught) == ("no file\n", False)
    assert run(client, "fake__echo(a=1)['a']") == ("1", False)
    assert run(client, "import re\nre.search('b+', fake__echo(a='abbc')['a']).group()") == ("bb", False)


def test_policies_decide_about_calls_in_code(start: Any) -> None:
    rules = [{"decision": "deny", "servers": ["fake"], "tools": ["pid"]}]
    daemon = start({"fake": fake()}, settings={"policies": rules})
    daemon.wait_connected("fake")
    client = McpClient(daemon, MODERN, profile="*", capabilities={})
    text, is_error = run(client, "fake__pid()")
    assert is_error
    assert "the rule at $.settings.policies[0] denies it" in text


ESCAPES = [
    "open('/etc/passwd').read()",
    "import socket",
    "import subprocess",
    "import ctypes",
    "import os\nos.listdir('/')",
    "__import__('os').system('id')",
    "().__class__.__bases__[0].__subclasses__()",
    "eval('__import__(\"os\")')",
    "from pathlib import Path\nPath('/etc/passwd').read_text()",
    "while True: pass",
    "x = [0]\nwhile True: x = x + x",
    "def f(): return f()\nf()",
    "2 ** 10 ** 10",
    "while True: print('x' * 1000)",
]


def test_code_cannot_leave_the_sandbox_or_exceed_limits(start: Any) -> None:
    daemon: Daemon = start({"fake": fake()})
    daemon.wait_connected("fake")
    client = McpClient(daemon, MODERN, profile="*", capabilities={})
    for code in ESCAPES:
        text, is_error = run(client, code)
        assert is_error, (code, text)
        assert "root:" not in text
    wait_until(lambda: sandboxes(daemon) == 0, lambda: "a sandbox is left")


def test_cancelled_run_ends_its_calls(start: Any) -> None:
    daemon = start({"fake": fake()})
    daemon.wait_connected("fake")
    client = McpClient(daemon, LEGACY[0], profile="*", capabilities={})
    key = client.send("tools/call", name="run_code", arguments={"code": "fake__drop()"})
    wait_until(lambda: in_flight(daemon) == 1, lambda: "the call was not sent")
    assert sandboxes(daemon) == 1
    client.line.notify("notifications/cancelled", requestId=key, reason="enough")
    wait_until(lambda: in_flight(daemon) == 0, lambda: "the call still runs")
    wait_until(lambda: sandboxes(daemon) == 0, lambda: "a sandbox is left")


def test_runs_of_one_client_hold_up_no_other_and_end_with_it(start: Any) -> None:
    daemon = start({"fake": fake()})
    daemon.wait_connected("fake")
    flooding, other = (McpClient(daemon, LEGACY[0], profile="*", capabilities={}) for _ in range(2))
    for _ in range(5):
        flooding.send("tools/call", name="run_code", arguments={"code": "fake__drop()"})
    wait_until(lambda: in_flight(daemon) == 2, lambda: "the second run has not begun")
    assert run(other, "fake__echo(a=1)['a']") == ("1", False)
    assert in_flight(daemon) == 2
    flooding.line.close()
    wait_until(lambda: in_flight(daemon) == 0, lambda: "a call still runs")
    wait_until(lambda: sandboxes(daemon) == 0, lambda: "a sandbox is left")


def test_script_runs_from_the_shell(start: Any, tmp_path: Path) -> None:
    daemon = start({"fake": fake()})
    daemon.wait_connected("fake")
    script = tmp_path / "script.py"
    script.write_text(
        "import asyncio\n"
        "both = await asyncio.gather(fake__echo(a=1), fake__echo(a=2))\n"
        "[each['a'] for each in both]"
    )
    assert daemon.mcpctl("run", str(script)).stdout == "[1, 2]\n"
    script.write_text("for n in range(2):\n    print('line', fake__echo(a=n)['a'])")
    assert daemon.mcpctl("run", str(script)).stdout == "line 0\nline 1\n"
    script.write_text("fake__fail(message='broken')")
    failed = daemon.mcpctl("run", str(script))
    assert failed.returncode == 1
    assert "RuntimeError: broken" in failed.stderr
    assert daemon.mcpctl("run", str(tmp_path / "none.py")).returncode == 5
