"""A remote server behind a link that can be cut: two network namespaces, joined by a veth pair.

    unshare -n python -m tests.faults.network       as root; otherwise with -Urn

Runs one scenario and prints the observations as JSON. Packets on a cut link are lost silently, as behind a
router without power. A relay on loopback cannot simulate that, because there the kernel responds.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import trio

from mcpd.model.errors import LinkLost
from mcpd.model.server_spec import RestartPolicy, Timeouts
from mcpd.model.status import ServerState
from mcpd.transports.http_client import dial
from tests.fakes.http import LegacyScript, Request, fake_http
from tests.stopwatch import Stopwatch, stopwatch
from tests.supervision.test_remote_servers import World, living

OURS, THEIRS, PORT = "10.77.0.1", "10.77.0.2", 8000
NEAR, FAR = "near0", "far0"
QUICK = {
    socket.TCP_KEEPIDLE: 3,
    socket.TCP_KEEPINTVL: 2,
    socket.TCP_KEEPCNT: 3,
    socket.TCP_USER_TIMEOUT: 9000,
}
AWAY = 10.0
"""Seconds for which the cable stays cut after the daemon knows of it."""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


# ── server side ─────────────────────────────────────────────────────────────────────────────────


async def serve() -> None:
    """Run a server in a namespace of its own. A line `down` or `up` on stdin controls our end of the link."""
    print("here", flush=True)
    await trio.to_thread.run_sync(sys.stdin.readline)  # the link exists
    ip("link", "set", "lo", "up")
    ip("addr", "add", f"{THEIRS}/24", "dev", FAR)
    ip("link", "set", FAR, "up")

    async def call(request: Request) -> None:
        if request.message["params"].get("arguments"):
            await trio.sleep_forever()
        await request.result({"content": []})

    bound = trio.socket.socket()
    await bound.bind((THEIRS, PORT))
    async with fake_http(LegacyScript(on={"tools/call": call}), bound):
        print("serving", flush=True)
        while order := (await trio.to_thread.run_sync(sys.stdin.readline)).strip():
            ip("link", "set", FAR, order)
            print(order, flush=True)


# ── client side ─────────────────────────────────────────────────────────────────────────────────


class Cable:
    """The link to the server's namespace, and the server."""

    def __init__(self) -> None:
        argv = ["unshare", "-n", sys.executable, "-m", "tests.faults.network", "serve"]
        self._server = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._hear("here")
        ip("link", "set", "lo", "up")
        ip("link", "add", NEAR, "type", "veth", "peer", "name", FAR)
        ip("link", "set", FAR, "netns", str(self._server.pid))
        ip("addr", "add", f"{OURS}/24", "dev", NEAR)
        ip("link", "set", NEAR, "up")
        self.tell("connected", "serving")

    def tell(self, order: str, answer: str | None = None) -> None:
        assert self._server.stdin is not None
        self._server.stdin.write(order + "\n")
        self._server.stdin.flush()
        self._hear(answer or order)

    def _hear(self, word: str) -> None:
        assert self._server.stdout is not None
        heard = self._server.stdout.readline().strip()
        assert heard == word, heard

    def end(self) -> None:
        self._server.kill()
        self._server.wait(60)


async def scenario(cable: Cable, world: World, watch: Stopwatch) -> dict[str, object]:
    """Cut the link during a call, keep it down for a while, and restore it."""
    await world.wait(ServerState.CONNECTED)
    await world.call().wait_response()
    hanging = world.hanging_call()
    await trio.sleep(0.5)
    assert not hanging.done.is_set()
    cable.tell("down")
    watch.restart()
    with trio.fail_after(60):
        await hanging.done.wait()
    noticed = watch.seconds
    assert isinstance(hanging.error, LinkLost)
    with trio.fail_after(60):
        while world.server.state is ServerState.CONNECTED:
            with suppress(LinkLost):
                await world.call().wait_response()
            await trio.sleep(0.1)
    lost = watch.seconds
    await trio.sleep(AWAY)
    attempts = world.server.status().attempts
    cable.tell("up")
    watch.restart()
    await world.wait(ServerState.CONNECTED, 60)
    back = watch.seconds
    await world.call().wait_response()
    return {
        "noticed": noticed,
        "words": hanging.error.message,
        "may_have_run": hanging.error.may_have_run,
        "lost": lost,
        "attempts": attempts,
        "back": back,
    }


async def main() -> None:
    for index, (level, name, _) in enumerate(dial.SOCKET_OPTIONS):
        if level == socket.IPPROTO_TCP and name in QUICK:
            dial.SOCKET_OPTIONS[index] = (level, name, QUICK[name])
    cable = Cable()
    try:
        with tempfile.TemporaryDirectory() as home:
            url = f"http://{THEIRS}:{PORT}/mcp"
            policy = RestartPolicy(base=0.5, cap=5)
            # Delay liveness requests, so that the kernel detects the dead link.
            times = Timeouts(ping_idle=1000)
            async with living(Path(home), url, restart=policy, timeouts=times, era="legacy") as world:
                with stopwatch() as watch:
                    print(json.dumps(await scenario(cable, world, watch)))
    finally:
        cable.end()


if __name__ == "__main__":
    trio.run(serve if "serve" in sys.argv else main)
