"""`mcpctl bridge` as an editor starts it, with a real daemon that starts, stops, is killed or is missing."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from ctl.daemon.process import daemon_pid
from tests.e2e.harness import (
    BOUND,
    Daemon,
    Json,
    assert_gone,
    fake,
    instance_marks,
    private_environment,
    running,
    wait_until,
)

HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "ed", "version": "1"}}


class Editor:
    """A bridge as a child process, used as an editor uses it."""

    def __init__(
        self,
        environ: Mapping[str, str],
        cwd: Path,
        *flags: str,
        program: Sequence[str] = (sys.executable, "-m", "ctl"),
    ) -> None:
        self.process = subprocess.Popen(
            [*program, "bridge", *flags],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={"PYTHONPATH": os.environ.get("PYTHONPATH", ""), **environ},
            cwd=cwd,
            bufsize=0,
        )
        self._buffer = b""
        self.heard: list[Json] = []
        """Everything, in the order it came."""

    def send(self, **message: Any) -> None:
        self.raw(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    def raw(self, data: bytes) -> None:
        assert self.process.stdin is not None
        view = memoryview(data)
        while view:
            view = view[os.write(self.process.stdin.fileno(), view) :]

    def next(self, bound: float = BOUND) -> Json:
        """Return the next message. Raises EOFError when the bridge has ended; every line must be JSON-RPC."""
        assert self.process.stdout is not None
        fd, deadline = self.process.stdout.fileno(), time.monotonic() + bound
        while b"\n" not in self._buffer:
            if not select.select([fd], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise AssertionError(f"nothing came within {bound} s; heard: {self.heard[-5:]}")
            portion = os.read(fd, 1 << 20)
            if not portion:
                raise EOFError
            self._buffer += portion
        line, _, self._buffer = self._buffer.partition(b"\n")
        message: Json = json.loads(line)
        assert message["jsonrpc"] == "2.0"
        self.heard.append(message)
        return message

    def answer(self, key: object, bound: float = BOUND) -> Json:
        """Return the response to `key`, and keep the messages before it."""
        while True:
            for message in self.heard:
                if message.get("id") == key and "method" not in message:
                    return message
            self.next(bound)

    def until(self, method: str) -> Json:
        while (message := self.next()).get("method") != method:
            pass
        return message

    def ask(self, key: object, method: str, **params: Any) -> Json:
        self.send(id=key, method=method, params=params)
        return self.answer(key)

    def begin(self) -> None:
        """Shake hands. Asks again if the daemon takes longer to start than an editor waits."""
        answer = self.ask("hello", "initialize", **HELLO)
        for attempt in range(10):
            if "result" in answer or answer["error"]["data"]["code"] != "daemon_unreachable":
                break
            answer = self.ask(f"hello {attempt}", "initialize", **HELLO)
        assert "result" in answer, answer
        self.send(method="notifications/initialized")

    def close(self, bound: float = BOUND) -> tuple[int, float]:
        """Close stdin. Return the exit code and the seconds until then."""
        start = time.monotonic()
        assert self.process.stdin is not None
        self.process.stdin.close()
        code = self.process.wait(bound)
        return code, time.monotonic() - start

    def errors(self) -> str:
        """Return stderr, once the bridge has ended."""
        assert self.process.stderr is not None
        return self.process.stderr.read().decode()


@contextmanager
def editor(
    environ: Mapping[str, str],
    cwd: Path,
    *flags: str,
    program: Sequence[str] = (sys.executable, "-m", "ctl"),
) -> Iterator[Editor]:
    made = Editor(environ, cwd, *flags, program=program)
    try:
        yield made
    finally:
        if made.process.poll() is None:
            made.process.kill()
        made.process.wait(BOUND)
        for stream in (made.process.stdin, made.process.stdout, made.process.stderr):
            assert stream is not None
            stream.close()


def kill(daemon: Daemon) -> None:
    """Kill the daemon with SIGKILL, and wait until none of its processes is left."""
    mark = instance_marks(daemon)
    daemon.process.kill()
    daemon.process.wait(BOUND)
    assert_gone(mark)


def counted(result: Json) -> Json:
    """Return the counters of the scripted server."""
    counts: Json = json.loads(result["content"][0]["text"])
    return counts


def test_bridge_survives_a_killed_daemon_and_lost_calls_may_have_run(tmp_path: Path) -> None:
    """With 32 calls in flight, each gets one response, none runs twice, and the next call works."""
    with editor(private_environment(tmp_path), tmp_path, "--no-start", "--server", "fake") as ed:
        with running(tmp_path, {"fake": fake()}) as daemon:
            daemon.wait_connected("fake")
            ed.begin()
            for key in range(32):
                ed.send(id=key, method="tools/call", params={"name": "drop", "arguments": {}})
            ed.ask("all there", "tools/call", name="echo", arguments={})
            kill(daemon)
            for key in range(32):
                data = ed.answer(key)["error"]["data"]
                assert (data["code"], data["may_have_run"]) == ("link_lost", True)
        with running(tmp_path, {"fake": fake()}) as daemon:
            daemon.wait_connected("fake")
            if ed.answer("hello")["result"]["capabilities"]["tools"].get("listChanged"):
                ed.until("notifications/tools/list_changed")
            counts = counted(ed.ask("after", "tools/call", name="counts", arguments={})["result"])
            assert counts["seen"]["tools/call"] == 1
            assert len([m for m in ed.heard if "method" not in m and m["id"] in range(32)]) == 32
            assert ed.close()[0] == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signal_ends_the_bridge(tmp_path: Path, number: signal.Signals) -> None:
    """The bridge ends in any state, with the exit code that shells use."""
    with editor(private_environment(tmp_path), tmp_path, "--no-start") as ed:
        ed.ask(1, "ping")
        ed.process.send_signal(number)
        assert ed.process.wait(BOUND) == 128 + number


def test_a_plain_command_line_imports_neither_click_nor_trio(tmp_path: Path) -> None:
    """Dozens of bridges run on a machine, so each must be small and start in tens of milliseconds."""
    script = (
        "import sys, ctl.main\n"
        "code = ctl.main.run(['bridge', '--no-start', '--client', 'x'], {})\n"
        "loaded = sorted({'click', 'trio', 'attr', 'httpx', 'rich'} & sys.modules.keys())\n"
        "print(code, loaded, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        input=b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n',
        capture_output=True,
        env={**private_environment(tmp_path), "PYTHONPATH": os.environ.get("PYTHONPATH", "")},
        timeout=BOUND,
        check=True,
    )
    assert json.loads(done.stdout) == {"jsonrpc": "2.0", "id": 1, "result": {}}
    assert done.stderr.splitlines()[-1] == b"0 []"


APPENDER = """
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    key, params = message.get("id"), message.get("params", {})
    match message["method"]:
        case "initialize":
            info = {"name": "appender", "version": "1"}
            result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}
        case "tools/list":
            result = {"tools": [{"name": "append", "inputSchema": {"type": "object"}}]}
        case "tools/call":
            with open(sys.argv[1], "a") as file:
                file.write(params["arguments"]["line"] + "\\n")
            result = {"content": []}
        case _:
            result = None
    if key is not None:
        answer = {"error": {"code": -32601, "message": "no"}} if result is None else {"result": result}
        print(json.dumps({"jsonrpc": "2.0", "id": key, **answer}), flush=True)
"""
"""A server with one tool, which appends a line to a file."""


@pytest.mark.slow
def test_editors_that_keep_calling_do_not_notice_restarts(tmp_path: Path) -> None:
    """Editors call one tool after the other during restarts of the daemon: none fails or runs twice.

    The new daemon has the environment of `mcpctl daemon restart` and not that of an editor, although its
    predecessor, which no longer listens, waits for a server that stops slowly.
    """
    config, written = tmp_path / "config" / "mcpd", tmp_path / "written"
    config.mkdir(parents=True)
    code = APPENDER + "import time; time.sleep(1.2)"
    server = {"command": sys.executable, "args": ["-I", "-S", "-c", code, str(written)]}
    (config / "config.json").write_text(json.dumps({"mcpServers": {"a": server}}))
    environ = {"PYTHONPATH": os.environ.get("PYTHONPATH", ""), **private_environment(tmp_path)}
    socket_path = str(tmp_path / "run" / "mcpd" / "mcpd.sock")
    restarted = threading.Event()

    def mcpctl(*arguments: str) -> None:
        command, shell = [sys.executable, "-m", "ctl", *arguments], {**environ, "STARTED_BY": "shell"}
        subprocess.run(command, env=shell, cwd=tmp_path, timeout=BOUND, check=True, capture_output=True)

    def keep_calling(ed: Editor, name: str, tool: str, made: list[Json]) -> None:
        while not restarted.is_set():
            arguments = {"line": f"{name} {len(made)}"}
            made.append(ed.ask(len(made), "tools/call", name=tool, arguments=arguments))

    with ExitStack() as stack, ThreadPoolExecutor() as threads:
        stack.callback(mcpctl, "daemon", "stop")
        stack.callback(restarted.set)
        made: dict[str, list[Json]] = {}
        calling = []
        started_by_shell: list[bool] = []
        for name in ("x", "y", "z", "all"):
            flags, tool = ((), "a__append") if name == "all" else (("--server", "a"), "append")
            ed = stack.enter_context(editor({**environ, "STARTED_BY": name}, tmp_path, *flags))
            ed.begin()
            ed.ask("list", "tools/list")
            made[name] = []
            calling.append(threads.submit(keep_calling, ed, name, tool, made[name]))
        for _ in range(3):
            before = {name: len(answers) for name, answers in made.items()}
            mcpctl("daemon", "restart")
            started_with = Path(f"/proc/{daemon_pid(socket_path)}/environ").read_bytes().split(b"\0")
            started_by_shell.append(b"STARTED_BY=shell" in started_with)
            wait_until(
                lambda before=before: (  # type: ignore[misc]
                    all(len(made[name]) > count + 20 for name, count in before.items())
                    or any(each.done() for each in calling)
                ),
                lambda: f"before: {before}; now: { ({name: len(made[name]) for name in made}) }",  # noqa: B023
            )
        restarted.set()
        for each in calling:
            each.result(BOUND)
    assert started_by_shell == [True] * 3
    failed = [answer for answers in made.values() for answer in answers if "error" in answer]
    assert failed == []
    expected = Counter(f"{name} {number}" for name, answers in made.items() for number in range(len(answers)))
    assert Counter(written.read_text().splitlines()) == expected
