"""The fault injector does what its docstring says; a fault that is not injected proves nothing."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.servers.fake import ACTIONS, EXACT, TOOLS, malformed

COMMAND = (sys.executable, "-I", "-S", str(Path(__file__).with_name("fake.py")))
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}
LIMIT = 60.0


class Peer:
    """The fake as a child in its own session; a reader thread so that every wait has a limit."""

    def __init__(self, *flags: str, env: Mapping[str, str] | None = None) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            [*COMMAND, "--max-life", "300", *flags],
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            env=None if env is None else {**os.environ, **env},
            start_new_session=True,
        )
        self.lines: queue.Queue[bytes] = queue.Queue()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        self.next_id = 0

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(b"")

    def say(self, message: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()

    def send(self, method: str, params: Mapping[str, Any] | None = None) -> int:
        self.next_id += 1
        self.say({"jsonrpc": "2.0", "id": self.next_id, "method": method, "params": params or {}})
        return self.next_id

    def call(self, tool: str, **arguments: object) -> int:
        return self.send("tools/call", {"name": tool, "arguments": arguments})

    def line(self) -> bytes:
        return self.lines.get(timeout=LIMIT)

    def hear(self) -> Any:
        return json.loads(self.line())

    def ask(self, method: str, params: Mapping[str, Any] | None = None) -> Any:
        wanted = self.send(method, params)
        answer = self.hear()
        assert answer["id"] == wanted
        return answer.get("result", answer.get("error"))

    def text(self, tool: str, **arguments: object) -> Any:
        return self.ask("tools/call", {"name": tool, "arguments": arguments})["content"][0]["text"]

    def hello(self, version: str = "2025-11-25") -> Any:
        return self.ask("initialize", {"protocolVersion": version, "capabilities": {}})

    def close(self) -> None:
        for stream in (self.process.stdin, self.process.stderr):
            assert stream is not None
            with suppress(BrokenPipeError):
                stream.close()
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.reader.join(LIMIT)
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextmanager
def fake(*flags: str, env: Mapping[str, str] | None = None) -> Iterator[Peer]:
    peer = Peer(*flags, env=env)
    try:
        yield peer
    finally:
        peer.close()


def test_without_flags_it_is_a_decent_server_of_both_eras() -> None:
    """It answers the probe, initialize and lists, and ends when its stdin does."""
    with fake() as peer:
        assert peer.ask("server/discover", {"_meta": META})["supportedVersions"][0] == "2026-07-28"
        assert peer.hello("2025-03-26")["protocolVersion"] == "2025-03-26"
        names = {tool["name"] for tool in peer.ask("tools/list")["tools"]}
        assert names == {*ACTIONS, *TOOLS, "bad_output", "typed"}
        assert json.loads(peer.text("echo", a=1)) == {"a": 1}
        assert json.loads(peer.text("counts"))["seen"]["tools/call"] == 2
        assert peer.process.stdin is not None
        peer.process.stdin.close()
        assert peer.process.wait(LIMIT) == 0


@pytest.mark.parametrize("probe", ["-32601", "-32000", "silent", "exit"])
def test_a_legacy_server_meets_the_probe_as_told(probe: str) -> None:
    """With a code, with silence, or by exiting."""
    with fake("--era", "legacy", f"--probe={probe}") as peer:
        peer.send("server/discover", {"_meta": META})
        if probe == "exit":
            assert peer.line() == b""
            assert peer.process.wait(LIMIT) == 1
            return
        if probe != "silent":
            assert peer.hear()["error"]["code"] == int(probe)
        assert peer.hello()["protocolVersion"] == "2025-11-25"


def test_versions_can_be_chosen_unknown_or_never_answered() -> None:
    """The handshake flags."""
    with fake("--era", "modern", "--modern-versions", "2027-01-01") as peer:
        assert peer.hello()["code"] == -32601
        assert peer.ask("server/discover", {"_meta": META})["data"]["supported"] == ["2027-01-01"]
    with fake("--answer-version", "1999-01-01") as peer:
        assert peer.hello()["protocolVersion"] == "1999-01-01"
    with fake("--never-init") as peer:
        peer.send("initialize", {"protocolVersion": "2025-11-25"})
        assert peer.ask("ping") == {}


@pytest.mark.parametrize(
    ("flags", "status"),
    [
        (["--at", "start", "die", '{"how": 3}'], 3),
        (["--at", "init", "die", '{"how": "KILL"}'], -9),
        (["--at", "ready", "die"], 1),
        (["--script", '{"at": [["call:2", "die", {"how": 7}]]}'], 7),
    ],
)
def test_it_exits_as_its_options_say(flags: list[str], status: int) -> None:
    """By status or signal, before or after the handshake, at a call."""
    with fake(*flags) as peer:
        with suppress(BrokenPipeError):
            peer.send("initialize", {"protocolVersion": "2025-11-25"})
            peer.call("echo")
            peer.call("echo")
        assert peer.process.wait(LIMIT) == status


def test_only_the_first_lives_go_wrong(tmp_path: Path) -> None:
    """`--only-lives` counts the starts in the file of `--lives`; the script may come by environment."""
    script = {"lives": str(tmp_path / "lives"), "only_lives": 1, "at": [["start", "die", {"how": 5}]]}
    for expected in (5, 0):
        with fake(env={"FAKE_SCRIPT": json.dumps(script)}) as peer:
            assert peer.process.stdin is not None
            peer.process.stdin.close()
            assert peer.process.wait(LIMIT) == expected
    assert len((tmp_path / "lives").read_text().split()) == 2


def test_junk_and_malformed_frames_surround_the_answers() -> None:
    """All of it before the reply it was bound to, and the same for the same seed."""
    with fake("--at", "start", "junk", '{"lines": 7}', "--at", "call", "malformed", '{"count": 50}') as peer:
        assert [peer.line() for _ in range(7)][3] == b"a line from elsewhere\r\n"
        peer.hello()
        peer.call("echo")
        frames = [peer.line() for _ in range(50)]
        assert peer.hear()["id"] == 2
    one, other = malformed(3), malformed(3)
    assert [next(one) for _ in range(500)] == [next(other) for _ in range(500)]
    assert all(frame.endswith(b"\n") for frame in frames)
    assert b"\n" not in b"".join(next(one) for _ in range(5000))


def test_results_are_odd_in_the_way_asked_for() -> None:
    """Encodings, framing and bytes."""
    with fake() as peer:
        peer.hello()
        peer.call("exact")
        assert EXACT.encode() in peer.line()
        expected = {
            "surrogate": b"\\ud800",
            "utf8": b"\xff\xc3\x28",
            "u2028": "\u2028".encode(),
            "bom": b"\xef\xbb\xbf{",
            "nul": b"}\x00\n",
            "crlf": b"}\r\n",
            "batch": b"[{",
            "stringid": b'"id": "',
            "pieces": b"pieces",
        }
        for kind, mark in expected.items():
            peer.call("odd", kind=kind)
            assert mark in peer.line()
        peer.call("odd", kind="twice")
        assert peer.line() == peer.line()
        peer.call("odd", kind="pretty")
        assert peer.line() == b"{\n"
        while peer.line() != b"}\n":
            pass
        assert len(peer.text("big", mb=1)) == 1 << 20
        peer.call("deep", depth=1000)
        assert b"[" * 1000 in peer.line()
        assert peer.ask("tools/call", {"name": "bad_output"})["structuredContent"] == {"n": "three"}


def test_answers_come_late_never_or_step_by_step() -> None:
    """And what was cancelled meanwhile is remembered."""
    with fake("--drop", "ping", "--delay", "tools/list=0.2", "--refuse", "prompts/list=-32603") as peer:
        peer.hello()
        peer.send("ping")
        peer.call("drop")
        listing, late = peer.send("tools/list"), peer.call("late", seconds=1.0)
        peer.say({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": late}})
        counts = peer.call("counts")
        heard = {answer["id"]: answer for answer in (peer.hear() for _ in range(3))}
        assert heard.keys() == {counts, listing, late}
        assert json.loads(heard[counts]["result"]["content"][0]["text"])["cancelled"] == [late]
        assert list(heard)[-1] == late
        assert peer.ask("prompts/list")["code"] == -32603
        params = {"name": "progress", "arguments": {"total": 0.3}, "_meta": {"progressToken": "t"}}
        peer.send("tools/call", params)
        assert [peer.hear()["params"]["progressToken"] for _ in range(3)] == ["t"] * 3


@pytest.mark.parametrize(
    ("cursor", "expected"),
    [
        ("plain", ["page-1", "page-2", None]),
        ("empty", ["", "page-2", None]),
        ("loop", ["page-1", "page-2", "page-1"]),
    ],
)
def test_the_list_of_tools_comes_in_pages(cursor: str, expected: list[str | None]) -> None:
    """Every tool once, whatever the cursors look like."""
    with fake("--tools", "100", "--pages", "3", "--cursor", cursor, "--bad-tools") as peer:
        peer.hello()
        params: dict[str, Any] = {}
        found, cursors = [], []
        for _ in range(3):
            page = peer.ask("tools/list", params)
            found += page["tools"]
            cursors.append(page.get("nextCursor"))
            params = {"cursor": cursors[-1]}
        assert cursors == expected
        assert (
            sum(isinstance(tool, dict) and str(tool.get("name")).startswith("tool-") for tool in found) == 100
        )
        assert None in found


def test_it_asks_notifies_and_changes() -> None:
    """Requests to the client, floods, and a list that grows; on a subscription in the modern era."""
    with fake("--at", "ready", "ask", '{"method": "roots/list"}') as peer:
        peer.hello()
        asked = peer.hear()
        assert asked["method"] == "roots/list"
        peer.say({"jsonrpc": "2.0", "id": asked["id"], "result": {"roots": []}})
        call = peer.call("ask", method="ping")
        peer.say({"jsonrpc": "2.0", "id": peer.hear()["id"], "result": {}})
        assert peer.hear()["id"] == call
        peer.call("notify", count=1000)
        assert {peer.hear().get("method") for _ in range(1001)} == {"notifications/tools/list_changed", None}
        listening = peer.send("subscriptions/listen", {"notifications": {}, "_meta": META})
        peer.hear()
        peer.call("change")
        assert peer.hear()["params"]["_meta"] == {"io.modelcontextprotocol/subscriptionId": listening}
        peer.hear()
        assert peer.ask("tools/list")["tools"][-1]["name"] == "extra-1"


def test_it_says_what_it_was_given() -> None:
    """Environment, arguments, directory, descriptors and process ids."""
    with fake(env={"CANARY": "yellow"}) as peer:
        assert json.loads(peer.text("env"))["CANARY"] == "yellow"
        assert "--max-life" in json.loads(peer.text("argv"))
        assert peer.text("cwd") == os.getcwd()
        assert json.loads(peer.text("fds")) == [0, 1, 2]
        assert peer.text("pid") == str(peer.process.pid)


def test_it_floods_its_stderr() -> None:
    """Lines and megabytes without one."""
    with fake("--at", "start", "stderr", '{"lines": 2, "mb": 2}') as peer:
        assert peer.process.stderr is not None
        assert peer.process.stderr.readline() == b"line 0\n"
        assert len(peer.process.stderr.read(2 << 20)) == 2 << 20


def test_it_closes_stdout_and_lives_on_deaf_to_everything_but_kill() -> None:
    """The end of stdin, TERM and INT are ignored when told so."""
    with fake("--ignore-eof", "--ignore-term") as peer:
        peer.hello()
        peer.call("close", what="stdout")
        assert peer.line() == b""
        assert peer.process.stdin is not None
        peer.process.stdin.close()
        peer.process.terminate()
        peer.process.send_signal(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            peer.process.wait(0.3)


def test_it_stops_reading() -> None:
    """After the handshake; the pipe fills while it lives."""
    with fake("--no-read") as peer:
        peer.hello()
        peer.send("ping")
        with pytest.raises(queue.Empty):
            peer.lines.get(timeout=0.3)
        assert peer.process.poll() is None


def test_a_wrapper_keeps_the_pid_and_the_server_runs_below_it() -> None:
    """As npx does: killing the shell alone leaves the server alive on the same pipes."""
    with fake("--wrapper") as peer:
        peer.hello()
        assert int(peer.text("pid")) != peer.process.pid
        peer.process.kill()
        peer.process.wait(LIMIT)
        assert peer.ask("ping") == {}


def test_a_grandchild_leaves_the_group_and_ignores_term() -> None:
    """It outlives killpg and TERM."""
    with fake() as peer:
        peer.hello()
        pid = int(peer.text("spawn"))
        try:
            assert os.getsid(pid) == pid
            os.killpg(peer.process.pid, signal.SIGKILL)
            peer.process.wait(LIMIT)
            os.kill(pid, signal.SIGTERM)
            assert _state(pid) in "SR"
            with pytest.raises(queue.Empty):
                peer.lines.get(timeout=0.2)  # stdout stays open in its hands
        finally:
            os.killpg(pid, signal.SIGKILL)


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
