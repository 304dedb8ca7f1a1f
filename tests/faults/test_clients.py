"""Misbehaving clients: none affects any other client."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from mcpd.api.listeners import MAX_ESTABLISHED, MAX_PER_PROCESS
from tests.e2e.conftest import Start
from tests.e2e.harness import BOUND, Client, Json, Refused, fake, wait_until
from tests.faults.bystander import nothing_left, resident, undisturbed
from tests.faults.measure import more_descriptors, peak_memory
from tests.stopwatch import stopwatch, within

MIB = 1 << 20
KILLED = """
import json, socket, sys, time
held = []
for n in range(int(sys.argv[2])):
    one = socket.socket(socket.AF_UNIX)
    one.connect(sys.argv[1])
    params = {"server": "busy", "tool": "progress", "arguments": {"total": 600}}
    request = {"jsonrpc": "2.0", "id": n, "method": "mcpd/call", "params": params}
    one.sendall(json.dumps(request).encode() + b"\\n")
    held.append(one)
print("sent", flush=True)
time.sleep(600)
"""


def counts(client: Client, server: str) -> Json:
    return dict(json.loads(client.call(server, "counts")["output"]))


def cancelled(client: Client) -> int:
    return len(counts(client, "busy")["cancelled"])


def is_closed(client: Client, bound: float) -> bool:
    """Return whether the daemon closes the connection within `bound` seconds. Received data is discarded."""
    client.socket.settimeout(bound)
    try:
        while client.socket.recv(MIB):
            pass
    except TimeoutError:
        return False
    except ConnectionError:
        pass
    return True


def test_calls_of_killed_clients_are_cancelled_upstream(start: Start) -> None:
    """A hundred cancellations reach the server within half a second; other clients are not affected."""
    daemon = start({"busy": fake(), "calm": fake()})
    daemon.wait_connected("busy", "calm")
    watcher = daemon.client()
    watcher.call("busy", "progress", {"total": 0})
    with nothing_left(daemon), undisturbed(daemon, "calm"), stopwatch() as watch:
        for round_ in (1, 2):
            with subprocess.Popen(
                [sys.executable, "-I", "-c", KILLED, daemon.socket, "50"], stdout=subprocess.PIPE
            ) as victim:
                assert victim.stdout is not None
                assert victim.stdout.readline() == b"sent\n"
                wait_until(lambda: daemon.status("busy")["in_flight"] == 50, lambda: "not all were sent")
                victim.kill()
                watch.restart()
            expected = 50 * round_
            wait_until(lambda: cancelled(watcher) == expected, lambda: f"{cancelled(watcher)} cancelled")  # noqa: B023
            assert within(watch.seconds, 0.5)
        assert daemon.status("busy")["in_flight"] == 0


def test_client_that_never_reads_is_closed_and_uses_little_memory(start: Start) -> None:
    """100 MB of unread results end only the client's own connection; memory stays bounded."""
    daemon = start({"busy": fake(), "calm": fake()})
    daemon.wait_connected("busy", "calm")
    reading = daemon.client()
    with peak_memory(daemon.pid) as usual:  # the memory that such results need for a client that reads them
        for _ in range(5):
            reading.call("busy", "big", {"mb": 1}, raw=True)
            reading.call("calm", "echo")
    base = usual.bytes
    slow = daemon.client()
    slow.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    with peak_memory(daemon.pid) as peak, undisturbed(daemon, "calm"):
        params = {"server": "busy", "tool": "big", "arguments": {"mb": 1}, "raw": True}
        calls = [{"jsonrpc": "2.0", "id": n, "method": "mcpd/call", "params": params} for n in range(100)]
        # in one write: the connection may be closed before it ends
        slow.socket.sendall(b"".join(json.dumps(call).encode() + b"\n" for call in calls))
        wait_until(lambda: "does not read its responses" in daemon.log, lambda: daemon.log)
        time.sleep(0.2)  # include the peak: calls in flight may still get results

    assert peak.bytes - base < 8 * MIB, f"{(peak.bytes - base) / MIB:.1f} MiB"
    assert is_closed(slow, BOUND)


def test_daemon_stops_immediately_although_a_client_does_not_read(start: Start) -> None:
    """The shutdown does not wait for a client that does not read."""
    daemon = start({"busy": fake()})
    daemon.wait_connected("busy")
    daemon.client().call("busy", "echo")
    slow = daemon.client()
    slow.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    slow.send("mcpd/call", server="busy", tool="big", arguments={"mb": 2}, raw=True)
    assert slow.socket.recv(1, socket.MSG_PEEK)  # the response has started, and the rest will not be read
    wait_until(lambda: daemon.status("busy")["in_flight"] == 0, lambda: "not answered")

    with stopwatch() as watch:
        assert daemon.stop() == 0
        assert within(watch.seconds, 1.0)


HOLD = """
import json, resource, socket, sys
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
held, refusals = [], []
for _ in range(int(sys.argv[2])):
    one = socket.socket(socket.AF_UNIX)
    one.connect(sys.argv[1])
    one.settimeout(60)
    one.sendall(b'{"jsonrpc":"2.0","id":1,"method":"mcpd/events"}\\n')
    held.append(one)
    answer = one.recv(65536).decode()  # an event: the connection is in use
    if len(held) > int(sys.argv[3]):
        refusals.append(answer)
        held.pop().close()
print(json.dumps(sorted(set(refusals))), flush=True)
sys.stdin.read()
"""
"""A program that holds connections which are in use, and expects the rest of them to be refused."""


@pytest.mark.slow
def test_program_that_holds_all_connections_does_not_keep_others_out(start: Start) -> None:
    """Ten times as many as there are: the program gets an error, and the user can still stop the daemon."""
    daemon = start({"busy": fake()})
    daemon.wait_connected("busy")
    argv = [sys.executable, "-c", HOLD, daemon.socket, str(10 * MAX_ESTABLISHED), str(MAX_PER_PROCESS)]
    with ExitStack() as stack:
        holder = stack.enter_context(
            subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        )
        stack.callback(holder.kill)
        assert holder.stdout is not None
        (refusal,) = json.loads(holder.stdout.readline())
        assert f"a process may have {MAX_PER_PROCESS} connections" in refusal
        environ = {**daemon.environ, "MCPD_SOCKET": daemon.socket, "MCPD_NO_START": "1"}
        for command in (("status",), ("call", "busy", "echo"), ("daemon", "stop")):
            done = subprocess.run(
                [sys.executable, "-m", "ctl", *command],
                env=environ,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=BOUND,
            )
            assert done.returncode == 0, done.stdout + done.stderr
        daemon.process.wait(BOUND)


@pytest.mark.slow
def test_thousand_idle_connections_do_not_block_new_clients(start: Start) -> None:
    """Each sends half a request; a new client still gets its status within 200 ms."""
    daemon = start({"busy": fake()})
    daemon.wait_connected("busy")
    working = daemon.client()
    working.call("busy", "echo")
    call = working.send("mcpd/call", server="busy", tool="late", arguments={"seconds": 3})
    idle: list[socket.socket] = []
    slowest = 0.0
    with more_descriptors(), stopwatch() as watch:
        try:
            for n in range(1000):
                one = socket.socket(socket.AF_UNIX)
                idle.append(one)
                one.settimeout(BOUND)
                one.connect(daemon.socket)
                one.sendall(b'{"jsonrpc":"2.0","id":1,"met')
                if n % 50 == 0:
                    watch.restart()
                    daemon.status("busy")
                    slowest = max(slowest, watch.seconds)
            with Client(daemon.socket) as client:
                clients = client.request("mcpd/status")["daemon"]["clients"]
        finally:
            for one in idle:
                one.close()

    assert within(slowest, 0.2)
    assert clients <= 256
    assert working.answer(call)["output"] == "late"  # a connection with a request in flight keeps its seat


def test_oversized_request_is_refused_with_its_id(start: Start) -> None:
    """The limit is named, other requests of the connection continue, and the memory is released."""
    daemon = start({"calm": fake()})
    daemon.wait_connected("calm")
    daemon.client().call("calm", "echo")  # the schema library, some megabytes, is loaded from now on
    client = daemon.client()
    base = resident(daemon.pid)
    with undisturbed(daemon, "calm"):
        for head, tail in ((b'{"id":7,', b"}"), (b"{", b',"id":7}')):
            client.send_raw(head + b'"method":"mcpd/call","params":"' + b"x" * 40 * MIB + b'"' + tail)
            with pytest.raises(Refused, match="more than 33554432 bytes"):
                client.answer(7)
    assert client.call("calm", "echo")["success"]
    wait_until(lambda: resident(daemon.pid) - base < 8 * MIB, lambda: "the memory is not given back")


def test_request_of_small_values_is_refused_with_its_id(start: Start) -> None:
    """The limit is named, and the connection stays open."""
    daemon = start({"calm": fake()})
    daemon.wait_connected("calm")
    with undisturbed(daemon, "calm"), daemon.client() as client:
        values = b"[" + b"1," * (5 * MIB) + b"1]"
        for head, tail in ((b'{"id":"x",', b"}"), (b"{", b',"id":"x"}')):
            client.send_raw(head + b'"method":"mcpd/call","params":' + values + tail)
            with pytest.raises(Refused, match="more than 8388608 bytes outside of strings"):
                client.answer("x")
        assert client.call("calm", "echo")["success"]


@pytest.mark.root
@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_other_user_is_refused_even_if_file_modes_allow_access(start: Start, tmp_path: Path) -> None:
    """Even with open file modes, another user gets no byte, and the log names the uid."""
    daemon = start({"calm": fake()})
    path = Path(daemon.socket)
    path.chmod(0o666)
    path.parent.chmod(0o777)
    got = as_another_user(path, b'{"jsonrpc":"2.0","id":1,"method":"mcpd/status"}\n')

    assert got == b"connected:"
    wait_until(lambda: "refused a client of uid 65534" in daemon.log, lambda: daemon.log)
    path.chmod(0o600)
    assert as_another_user(path, b"") == b"PermissionError"


def as_another_user(path: Path, request: bytes) -> bytes:
    """Return what user 65534 gets for a request: `connected:` and the response, or the exception name."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        said = b"?"
        try:
            os.chdir(path.parent)  # the parent directories are not accessible for others
            os.setgroups([])
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
            with socket.socket(socket.AF_UNIX) as one:
                one.settimeout(BOUND)
                one.connect(path.name)
                said = b"connected:"
                try:
                    one.sendall(request)
                    said += one.recv(1000)
                except ConnectionError:
                    pass
        except BaseException as error:
            said = type(error).__name__.encode()
        finally:
            os.write(write, said)
            os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read, "rb") as answer:
        return answer.read()


@pytest.mark.slow
def test_the_same_ids_of_two_clients_do_not_mix(start: Start) -> None:
    """10,000 responses reach their senders; 1, 1.0, 1e0 and "1" are four different ids."""
    daemon = start({"busy": fake(maxInFlight=256, maxQueued=1000)})
    daemon.wait_connected("busy")
    wrong: list[bytes] = []

    def ask(name: str) -> None:
        with Client(daemon.socket) as client:
            client.request("mcpd/attach", server="busy")
            for first in range(0, 5_000, 200):
                keys = [
                    (b"%d", b"%d.0", b'"%d"', b"%de0")[n % 4] % (n // 4) for n in range(first, first + 200)
                ]
                client.socket.sendall(
                    b"".join(
                        b'{"jsonrpc":"2.0","id":%b,"method":"tools/call","params":{"name":"echo",'
                        b'"arguments":{"from":"%b","id":[%b]}}}\n' % (key, name.encode(), key)
                        for key in keys
                    )
                )
                left = set(keys)
                for _ in keys:
                    line = client.read_line()
                    key = line.partition(b'"id":')[2].partition(b",")[0]
                    left.discard(key)
                    said = json.loads(json.loads(line)["result"]["content"][0]["text"])
                    if said["from"] != name or said["id"] != [json.loads(key)]:
                        wrong.append(line)
                wrong.extend(left)

    clients = [threading.Thread(target=ask, args=(name,), daemon=True) for name in ("ada", "bob")]
    for each in clients:
        each.start()
    for each in clients:
        each.join(400)
        assert not each.is_alive()

    assert wrong == []
