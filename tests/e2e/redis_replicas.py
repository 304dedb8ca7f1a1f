"""A real Redis server, and replicas of mcpd that use it."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import attrs

from tests.e2e.harness import BOUND, Daemon, Json, running, wait_until
from tests.interop.peers import free_port

TOKEN = "t" * 43


@attrs.define
class RedisServer:
    url: str
    process: subprocess.Popen[bytes]

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Let it answer nothing during the block."""
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)


@contextmanager
def redis_server(directory: Path) -> Iterator[RedisServer]:
    path = directory / "redis.sock"
    options = ["--port", "0", "--unixsocket", str(path), "--save", "", "--dir", str(directory)]
    process = subprocess.Popen(["redis-server", *options], stdout=subprocess.DEVNULL)
    try:
        wait_until(path.exists, lambda: "Redis did not start")
        yield RedisServer(f"unix://{path}", process)
    finally:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait(BOUND)


@contextmanager
def replicas(
    home: Path,
    url: str,
    servers: Mapping[str, Json],
    count: int = 2,
    address: str = "",
    http: Json | None = None,
    **settings: object,
) -> Iterator[list[Daemon]]:
    """`address`: what all of them say that theirs is; different ones by default. `http`: more for this
    setting."""
    with ExitStack() as stack:
        found = []
        for number in range(count):
            own, port = home / str(number), f"127.0.0.1:{free_port()}"
            state = own / "state" / "mcpd"
            state.mkdir(parents=True, mode=0o700)
            (state / "http-token").touch(0o600)
            (state / "http-token").write_text(TOKEN)
            cluster = {"key": "k" * 32, "address": address or f"http://{port}", "redis": url}
            more: Json = {"http": {"listen": port, "cluster": cluster, **(http or {})}, **settings}
            found.append(stack.enter_context(running(own, servers, settings=more)))
        yield found
