"""Failures of child processes: callers get an error immediately, other servers are not affected."""

from __future__ import annotations

import itertools
import json
import os
import resource
import shlex
import signal
import time
from functools import partial
from pathlib import Path

import pytest

from tests.e2e.conftest import Start
from tests.e2e.harness import BOUND, Client, Json, Refused, fake, impatient, marked, wait_until
from tests.faults.bystander import nothing_left, resident, thread_count, threads_end, undisturbed
from tests.processes import alive, gone
from tests.stopwatch import stopwatch, within

QUICK_STOP = {"stop": 0.4}
"""The ladder, for tests that are not about it."""
ONCE = {"base": 600, "cap": 600}
"""Restart figures for who wants to see a server that failed: it stays so."""


def reconnected(old: int, status: Json) -> bool:
    """Connected, as another process than `old`."""
    return connected(status) and status["pid"] != old


def connected(status: Json) -> bool:
    return bool(status["status"] == "connected")


def failed(status: Json) -> bool:
    return bool(status["status"] == "failed")


def test_64_callers_of_a_killed_child_get_errors_within_a_second(start: Start) -> None:
    """All 64 errors name the server and the cause and say that the call may have run; ready again in 2 s."""
    daemon = start({"victim": fake(era="legacy"), "calm": fake()})
    daemon.wait_connected("victim", "calm")
    client, pid = daemon.client(), daemon.status("victim")["pid"]
    with pytest.raises(Refused, match=r"took|was not sent"):
        client.call("victim", "drop", timeout=0.1)  # the schema of the tool is compiled now
    with nothing_left(daemon), undisturbed(daemon, "calm"), stopwatch() as watch:
        calls = [client.send("mcpd/call", server="victim", tool="drop", arguments={}) for _ in range(64)]
        wait_until(lambda: daemon.status("victim")["in_flight"] == 64, lambda: "not all were sent")
        os.killpg(pid, signal.SIGKILL)
        watch.restart()
        errors = [refusal(client, call) for call in calls]
        heard = watch.seconds
        back = daemon.wait_status("victim", lambda status: connected(status) and status["pid"] != pid)
        ready = watch.seconds

    for error in errors:
        assert error.code == "link_lost"
        assert error.body["data"]["server"] == "victim"
        assert error.body["data"]["may_have_run"] is True
        assert "victim: was killed by SIGKILL" in str(error)
        assert "it may have run" in str(error)
    assert within(heard, 1.0)
    assert within(ready, 2.0)
    assert back["restarts"] == 1
    assert not alive(pid)


A2: dict[str, tuple[str, Json, str, Json]] = {
    "status-0": ("start", {"how": 0}, "exited", {"exit_code": 0}),
    "status-3-before-the-handshake": ("init", {"how": 3}, "exited", {"exit_code": 3}),
    "killed": ("start", {"how": "KILL"}, "killed", {"signal": "SIGKILL"}),
    "terminated-after-the-handshake": ("ready", {"how": "TERM"}, "killed", {"signal": "SIGTERM"}),
    "segfault": ("init", {"how": "SEGV"}, "killed", {"signal": "SIGSEGV"}),
}


def test_exited_child_is_shown_within_a_second_with_its_stderr(start: Start) -> None:
    """Exits with status 0 and 1 and by signals; before, during and after the handshake."""
    servers = {
        name: fake(
            "--at", "start", "stderr", '{"lines": 25, "text": "word"}', "--at", when, "die", json.dumps(given)
        )
        | {"enabled": False}
        for name, (when, given, _, _) in A2.items()
    }
    daemon = start(servers | {"calm": fake()})
    daemon.wait_connected("calm")
    client = daemon.client()
    with undisturbed(daemon, "calm"), stopwatch() as watch:
        for name, (_, _, kind, evidence) in A2.items():
            watch.restart()
            client.request("mcpd/enable", server=name)
            error = daemon.wait_status(name, failed)["last_error"]
            assert within(watch.seconds, 1.0), name
            assert error["kind"] == kind, name
            assert {key: error[key] for key in evidence} == evidence, name
            assert error["stderr"] == [f"word {n}" for n in range(5, 25)], name


def test_handshake_without_a_response_times_out(start: Start) -> None:
    """The error arrives at the timeout ± 1 s, and the unresponsive process is killed."""
    limit = 1.5
    mute = fake(
        "--never-init", "--ignore-eof", "--ignore-term", connectTimeout=limit * 1000, timeouts=QUICK_STOP
    )
    daemon = start({"mute": mute | {"enabled": False, "restart": ONCE}, "calm": fake()})
    daemon.wait_connected("calm")
    client = daemon.client()
    with undisturbed(daemon, "calm"), nothing_left(daemon), stopwatch() as watch:
        began = time.monotonic()
        client.request("mcpd/enable", server="mute")
        status = daemon.wait_status("mute", failed)
        took, waited = watch.seconds, time.monotonic() - began
        wait_until(lambda: daemon.status("mute")["pid"] is None, lambda: "it was not killed")
        client.request("mcpd/disable", server="mute", wait=BOUND)

    assert limit - 1 <= waited
    assert within(took, limit + 1)
    assert status["last_error"]["kind"] == "timeout"
    assert "handshake within 1.5 s" in status["last_error"]["message"]
    assert status["retry_at"] is not None


def test_server_is_killed_when_only_its_wrapper_dies(start: Start) -> None:
    """The shell of `npx` and its children are gone within 3 s, and the server restarts."""
    daemon = start({"npx": fake("--wrapper", "--ignore-eof"), "calm": fake()})
    daemon.wait_connected("npx", "calm")
    wrapper = daemon.status("npx")["pid"]
    behind = int(daemon.client().call("npx", "pid")["output"])
    assert behind != wrapper
    with nothing_left(daemon), undisturbed(daemon, "calm"):
        os.kill(wrapper, signal.SIGKILL)
        took = wait_until(lambda: not alive(wrapper) and not alive(behind), lambda: "the server lives on")
        daemon.wait_status("npx", lambda status: connected(status) and status["pid"] != wrapper)
    assert within(took, 3.0)


def test_grandchild_that_left_the_group_and_ignores_sigterm_is_killed(start: Start) -> None:
    """Grandchildren are gone after 6 s, however the server ended, and leave no zombies."""
    daemon = start({"parent": fake(timeouts={"stop": 2}), "calm": fake()})
    daemon.wait_connected("parent", "calm")
    client = daemon.client()
    with nothing_left(daemon), undisturbed(daemon, "calm"):
        for end in ("kill", "reconnect"):
            stray = int(client.call("parent", "spawn")["output"])
            pid = daemon.status("parent")["pid"]
            assert os.getsid(stray) == stray
            if end == "kill":
                os.kill(pid, signal.SIGKILL)
            else:
                client.request("mcpd/reconnect", server="parent")
            took = wait_until(partial(gone, stray), lambda: "it lives on")
            daemon.wait_status("parent", partial(reconnected, pid))
            assert within(took, 6.0)


@pytest.mark.slow
def test_twenty_unresponsive_children_delay_the_shutdown_less_than_ten_seconds(start: Start) -> None:
    """The stop sequence ends one server in 6 s, and a daemon with twenty in 10 s."""
    deaf = fake("--ignore-eof", "--ignore-term")
    daemon = start({f"deaf-{n}": deaf for n in range(20)})
    daemon.wait_connected(*(f"deaf-{n}" for n in range(20)))
    instance, pid = (
        daemon.client().request("mcpd/status")["daemon"]["instance"],
        daemon.status("deaf-0")["pid"],
    )
    with stopwatch() as watch:
        daemon.client().request("mcpd/disconnect", server="deaf-0")
        wait_until(lambda: not alive(pid), lambda: "it lives on")
        assert within(watch.seconds, 6.0)

        watch.restart()
        assert daemon.stop() == 0
        assert within(watch.seconds, 10.0)
    wait_until(lambda: not marked(instance), lambda: f"left: {marked(instance)}")


def test_stopped_child_is_detected_and_a_busy_one_is_not(start: Start) -> None:
    """A stopped server is detected in 3 s by pings; one that is busy for 2.5 s is left alone."""
    watched = {"ping": 0.4, **QUICK_STOP}
    daemon = start({"wedged": fake(timeouts=watched), "busy": fake(timeouts=watched), "calm": fake()})
    daemon.wait_connected("wedged", "busy", "calm")
    client, pid = daemon.client(), daemon.status("wedged")["pid"]
    busy = daemon.status("busy")["pid"]
    with nothing_left(daemon), undisturbed(daemon, "calm"), stopwatch() as watch:
        blocking = client.send("mcpd/call", server="busy", tool="block", arguments={"seconds": 2.5})
        dropped = client.send("mcpd/call", server="wedged", tool="drop", arguments={})
        os.kill(pid, signal.SIGSTOP)
        watch.restart()
        error = daemon.wait_status("wedged", lambda status: status["last_error"] is not None)["last_error"]
        took = watch.seconds
        with pytest.raises(Refused, match="wedged: "):
            client.answer(dropped)
        daemon.wait_status("wedged", lambda status: connected(status) and status["pid"] != pid)
        assert client.answer(blocking)["output"] == "block: done"
        assert daemon.status("busy")["pid"] == busy

    assert within(took, 3.0)
    assert error["kind"] == "wedged"
    assert "stopped" in error["message"]


def wait_arrived(client: Client, server: str) -> None:
    """Wait until the only call that was sent to a server has arrived there."""
    polls = itertools.count(1)

    def has_arrived() -> bool:
        number, seen = next(polls), json.loads(client.call(server, "counts")["output"])["seen"]
        return bool(seen["tools/call"] > number)

    wait_until(has_arrived, lambda: "the call did not arrive")


@pytest.mark.parametrize("what", ["stdout", "stdin"])
def test_child_that_closes_a_pipe_but_keeps_running_is_restarted(start: Start, what: str) -> None:
    """Callers get an error within 1 s, and the server restarts."""
    daemon = start({"half": fake(timeouts=QUICK_STOP), "calm": fake()})
    daemon.wait_connected("half", "calm")
    client, pid = daemon.client(), daemon.status("half")["pid"]
    with nothing_left(daemon), undisturbed(daemon, "calm"), stopwatch() as watch:
        waiting = client.send("mcpd/call", server="half", tool="drop", arguments={})
        wait_arrived(client, "half")
        closing = client.send("mcpd/call", server="half", tool="close", arguments={"what": what})
        if what == "stdin":
            assert client.answer(closing)["success"]
            watch.restart()  # nothing is detected until mcpd writes
            closing = client.send("mcpd/call", server="half", tool="echo", arguments={})
        for call in (waiting, closing):
            error = refusal(client, call)
            assert f"closed its {what} while still running" in str(error)
        took = watch.seconds
        status = daemon.wait_status("half", lambda s: connected(s) and s["pid"] != pid)
    assert within(took, 1.0)
    assert status["last_error"]["kind"] == "closed"
    assert not alive(pid)


def test_child_that_stops_reading_fails_only_its_unread_calls(start: Start) -> None:
    """Sending 1 MiB of arguments fails at the write deadline; the event loop is never blocked for 50 ms."""
    deadline = 8.0
    daemon = start({"full": fake(timeouts=QUICK_STOP), "calm": fake()})
    daemon.wait_connected("full", "calm")
    client, pid = daemon.client(), daemon.status("full")["pid"]
    with undisturbed(daemon, "calm", slowest=0.05), stopwatch() as watch:
        late = client.send("mcpd/call", server="full", tool="late", arguments={"seconds": 2.5})
        wait_arrived(client, "full")
        assert client.call("full", "stop_reading")["success"]
        watch.restart()
        with pytest.raises(Refused, match="full: it has not read its input") as refused:
            client.call("full", "echo", {"text": "x" * (1 << 20)})
        assert within(watch.seconds, deadline + 0.5)
        assert refused.value.body["data"]["may_have_run"] is False
        assert client.answer(late)["output"] == "late"
        assert daemon.status("full")["pid"] == pid


@pytest.mark.slow
def test_hundreds_of_restarts_leak_nothing(start: Start) -> None:
    """Descriptors, children and threads stay constant, without zombies; memory grows by less than 5 MB."""
    flapping = {
        "command": "/bin/sh",
        "args": ["-c", f"read line; printf '%s\\n' {shlex.quote(HELLO)}; read line"],
        "era": "legacy",
        "restart": impatient(base=0.001, cap=0.002),
        "enabled": False,
    }
    flappers = [f"flap-{n}" for n in range(4)]
    daemon = start(dict.fromkeys(flappers, flapping) | {"calm": fake()})
    daemon.wait_connected("calm")
    client = daemon.client()
    with nothing_left(daemon), undisturbed(daemon, "calm"):
        for flapper in flappers:
            client.request("mcpd/enable", server=flapper)
        wait_restarts(client, 100)
        memory, threads = resident(daemon.pid), thread_count(daemon.pid)
        wait_restarts(client, 400)
        wait_until(lambda: resident(daemon.pid) - memory < 5 << 20, lambda: "its memory has grown")
        for flapper in flappers:
            client.request("mcpd/disable", server=flapper)
        threads_end(daemon, threads)


HELLO = (
    '{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-06-18","capabilities":{},'
    '"serverInfo":{"name":"flap","version":"1"}}}'
)


def wait_restarts(client: Client, count: int) -> None:
    """Wait until the flapping servers together have restarted this often."""

    def enough() -> bool:
        servers = client.request("mcpd/status")["servers"]
        return bool(sum(server["restarts"] for server in servers) >= count)

    wait_until(enough, lambda: f"too slow: {client.request('mcpd/status')}", 400)


def test_missing_program_fails_immediately_and_is_not_retried(start: Start, tmp_path: Path) -> None:
    """The server fails in 0.5 s after one attempt, and the message names the fix."""
    (tmp_path / "not-executable").write_text("#!/bin/sh\n")
    for name, text in {"bad-shebang": "#!/no/such/shell\n", "no-shebang": "\x7fnot a program\n"}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    cases: dict[str, tuple[Json, str]] = {
        "not-found": ({"command": "no-such-program", "env": {"PATH": "/bin:/nowhere"}}, "PATH=/bin:/nowhere"),
        "no-file": ({"command": "/no/such/file"}, "no file /no/such/file"),
        "not-executable": ({"command": f"{tmp_path}/not-executable"}, "chmod +x"),
        "directory": ({"command": str(tmp_path)}, "is a directory"),
        "bad-cwd": ({"command": "sh", "cwd": "/no/such/directory"}, "/no/such/directory does not exist"),
        "bad-shebang": ({"command": f"{tmp_path}/bad-shebang"}, "check its `#!` line"),
        "no-shebang": ({"command": f"{tmp_path}/no-shebang"}, "cannot be run: Exec format error"),
        "too-long": ({"command": "sh", "args": ["x" * 200_000]}, "Argument list too long"),
    }
    daemon = start({"calm": fake()})
    daemon.wait_connected("calm")
    client = daemon.client()
    eager = {name: case | {"restart": impatient()} for name, (case, _) in cases.items()}
    with undisturbed(daemon, "calm"), stopwatch() as watch:
        client.request("mcpd/servers/set", servers=eager | {"calm": fake()})
        found = {name: daemon.wait_status(name, failed) for name in cases}
        took = watch.seconds
        time.sleep(0.3)  # thirty times the delay of a retry
        for name, (_, words) in cases.items():
            later = daemon.status(name)
            assert later["attempts"] == 1, name
            assert later["retry_at"] is None, name
            assert later["last_error"]["kind"] == "spawn", name
            assert words in found[name]["last_error"]["message"], name
    assert within(took, 0.5)


def test_daemon_without_free_descriptors_keeps_serving_and_recovers(start: Start) -> None:
    """Without free descriptors, starting a server is retried until it succeeds."""
    daemon = start({"hungry": fake(enabled=False, restart=impatient(cap=0.2)), "calm": fake()})
    daemon.wait_connected("calm")
    client = daemon.client()
    with undisturbed(daemon, "calm"):
        client.request("mcpd/status")
        _, hard = resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)
        held = max(int(entry.name) for entry in Path(f"/proc/{daemon.pid}/fd").iterdir())
        before = resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (held + 2, hard))
        client.request("mcpd/enable", server="hungry")
        wait_until(
            lambda: get_status(client, "hungry")["attempts"] >= 3, lambda: str(get_status(client, "hungry"))
        )
        error = get_status(client, "hungry")["last_error"]
        assert error["kind"] == "resources"
        assert "file descriptors" in error["message"]
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, before)
        wait_until(lambda: connected(get_status(client, "hungry")), lambda: str(get_status(client, "hungry")))
    assert daemon.process.poll() is None
    assert "an error in mcpd itself" not in daemon.log


def get_status(client: Client, server: str) -> Json:
    """Get the status over an existing connection."""
    servers: list[Json] = client.request("mcpd/status")["servers"]
    return next(status for status in servers if status["name"] == server)


def test_child_inherits_only_allowed_variables(start: Start) -> None:
    """None of 20 variables is inherited; `${env:X}` passes only X."""
    canaries = {f"{prefix}_CANARY_{n}": f"bird-{n}-{prefix}" for n, prefix in enumerate(PREFIXES)}
    assert len(canaries) == 20
    definition = fake(env={"MINE": "${env:AWS_CANARY_0}"})
    daemon = start({"curious": definition, "plain": fake()}, environ=canaries)
    daemon.wait_connected("curious", "plain")

    seen = daemon.client().call("plain", "env")["output"]
    assert [name for name, value in canaries.items() if name in seen or value in seen] == []
    assert '"PATH"' in seen
    seen = daemon.client().call("curious", "env")["output"]
    assert '"MINE": "bird-0-AWS"' in seen
    assert [
        name for name, value in canaries.items() if name in seen or value in seen.replace("bird-0-AWS", "")
    ] == []


PREFIXES = (
    *("AWS", "GITHUB", "OPENAI", "SSH", "GPG", "KUBE", "DOCKER", "NPM", "PYTHON", "NODE"),
    *("LD", "HTTP", "HTTPS", "ALL", "GIT", "DBUS", "MCP", "NOTIFY", "LISTEN", "ANTHROPIC"),
)


def refusal(client: Client, key: object) -> Refused:
    """Return the error of a call."""
    with pytest.raises(Refused) as refused:
        client.answer(key)
    return refused.value
