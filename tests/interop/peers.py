"""Servers that others have written, each in a process of its own, listening on a free port of loopback."""

from __future__ import annotations

import importlib.util
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
STARTS_WITHIN = 60.0

SDK_SERVER = """
import sys
port = int(sys.argv[1])
try:
    from mcp.server import MCPServer
    server = MCPServer("sdk")
    options = {"port": port}
except ImportError:
    from mcp.server.fastmcp import FastMCP
    server = FastMCP("sdk", port=port)
    options = {}

@server.tool()
def echo(message: str) -> str:
    return message

server.run(transport=sys.argv[2], **options)
"""


def free_port() -> int:
    """Nobody listens there, and the kernel gives it to no connection either: those are from 32768 on."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


@contextmanager
def everything(transport: str) -> Iterator[int]:
    """The reference server of the protocol's authors (TypeScript); `transport`: streamableHttp or sse."""
    name = "mcp-server-everything"
    program = shutil.which(name, path=f"{ROOT / '.npm/node_modules/.bin'}:{os.environ.get('PATH', '')}")
    if program is None:
        pytest.skip(f"{name} is not there: `make npm` installs it")
    port = free_port()
    with listening([program, transport], port, {"PORT": str(port)}):
        yield port


@contextmanager
def sdk(transport: str) -> Iterator[int]:
    """A server on the official Python SDK; `transport`: streamable-http or sse."""
    if importlib.util.find_spec("mcp") is None or importlib.util.find_spec("uvicorn") is None:
        pytest.skip("the Python SDK is not there: `pip install mcp`")
    port = free_port()
    with listening([sys.executable, "-c", SDK_SERVER, str(port), transport], port):
        yield port


@contextmanager
def bundled() -> Iterator[int]:
    """Our own test server."""
    port = free_port()
    with listening([sys.executable, "-m", "mcpd.testserver", "--http", f"127.0.0.1:{port}"], port):
        yield port


@contextmanager
def listening(argv: Sequence[str], port: int, environ: Mapping[str, str] | None = None) -> Iterator[None]:
    """Run a program until the block is left; it is entered once the port answers."""
    process = subprocess.Popen(
        argv,
        env={**os.environ, "PYTHONPATH": str(ROOT), **(environ or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + STARTS_WITHIN
        while True:
            assert process.poll() is None, f"{argv[0]} exited with {process.returncode}"
            assert time.monotonic() < deadline, f"{argv[0]} does not listen"
            try:
                socket.create_connection(("localhost", port), 1).close()
                break
            except OSError:
                time.sleep(0.05)  # nothing to wait on yet: the port is what we wait for
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)
