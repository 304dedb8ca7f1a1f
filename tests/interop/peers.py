"""Third-party servers, each in a process of its own, on a free port of loopback."""

from __future__ import annotations

import importlib.util
import itertools
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

from tests.example_server import TEST_SERVER

ROOT = Path(__file__).parent.parent.parent
SDK2 = (sys.executable, "-m", "tests.servers.reference.sdk2")
LEGACY = "2025-11-25"
AT_2026 = ("python-sdk-2", "fastmcp-4", "typescript-sdk-2")
"""Clients that use the revision without sessions."""
STARTS_WITHIN = 120.0
MAX_WORKERS = 16
"""Of tests/conftest.py."""

TOOLS = """
@server.tool()
def echo(message: str) -> str:
    return message

@server.tool()
async def count(steps: int, ctx: Context) -> str:
    for step in range(steps):
        await ctx.report_progress(step + 1, steps)
    return "counted"
"""

SDK1_SERVER = f"""
import sys
from mcp.server.fastmcp import Context, FastMCP
server = FastMCP("sdk", port=int(sys.argv[1]))
{TOOLS}
server.run(transport=sys.argv[2])
"""

SDK2_SERVER = f"""
import sys
from mcp.server.mcpserver import Context, MCPServer
server = MCPServer("sdk")
{TOOLS}
server.run(transport=sys.argv[2], port=int(sys.argv[1]))
"""

FASTMCP_SERVER = f"""
import sys
from fastmcp import Context, FastMCP
server = FastMCP("fastmcp")
{TOOLS}
server.run(transport=sys.argv[2], port=int(sys.argv[1]), path=sys.argv[3], show_banner=False)
"""


_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % MAX_WORKERS
_numbers = itertools.count(random.SystemRandom().randrange(10_000))


def free_port() -> int:
    """Return a port that is not in use, below 32768, where the kernel assigns no ports to connections.

    Each worker has ports of its own, and uses all of them before the first one again: another test may have
    got a port and not bound it yet.
    """
    while True:
        port = 20_000 + next(_numbers) % (12_000 // MAX_WORKERS) * MAX_WORKERS + _WORKER
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


@contextmanager
def everything(transport: str, port: int | None = None) -> Iterator[int]:
    """Run the reference server of the protocol's authors (TypeScript); `transport`: streamableHttp or sse."""
    name = "mcp-server-everything"
    program = shutil.which(name, path=f"{ROOT / '.npm/node_modules/.bin'}:{os.environ.get('PATH', '')}")
    if program is None:
        pytest.skip(f"{name} is not there: `make npm` installs it")
    port = port or free_port()
    with listening([program, transport], port, {"PORT": str(port)}):
        yield port


@contextmanager
def sdk(transport: str, port: int | None = None) -> Iterator[int]:
    """Run a server on the official Python SDK, with both eras; `transport`: streamable-http or sse."""
    if importlib.util.find_spec("mcp") is None or importlib.util.find_spec("uvicorn") is None:
        pytest.skip("the Python SDK is not there: `pip install mcp`")
    port = port or free_port()
    with listening([sys.executable, "-c", SDK2_SERVER, str(port), transport], port):
        yield port


@contextmanager
def sdk1(transport: str, port: int | None = None) -> Iterator[int]:
    """Run a server on the first generation of the SDK, which has sessions only."""
    port = port or free_port()
    with listening([made(".venv-mcp1"), "-c", SDK1_SERVER, str(port), transport], port):
        yield port


@contextmanager
def fastmcp(transport: str, port: int | None = None) -> Iterator[int]:
    """Run a server on FastMCP; `transport`: http or sse."""
    port = port or free_port()
    path = "/mcp" if transport == "http" else "/sse"
    argv = [made(".venv-fastmcp"), "-c", FASTMCP_SERVER, str(port), transport, path]
    with listening(argv, port):
        yield port


def made(venv: str) -> str:
    """Return the Python of an environment that `make interop` creates."""
    interpreter = ROOT / venv / "bin" / "python"
    if not interpreter.exists():
        pytest.skip(f"{venv} is not there: `make interop` makes it")
    return str(interpreter)


@contextmanager
def bundled(port: int | None = None) -> Iterator[int]:
    """Run our bundled test server."""
    port = port or free_port()
    with listening([sys.executable, TEST_SERVER, "--http", f"127.0.0.1:{port}"], port):
        yield port


@contextmanager
def listening(argv: Sequence[str], port: int, environ: Mapping[str, str] | None = None) -> Iterator[None]:
    """Run a program until the block ends. The block starts when the port accepts connections."""
    process = subprocess.Popen(
        argv,
        env={**os.environ, "PYTHONPATH": str(ROOT), **(environ or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait_for_port(process, port)
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(60)


def wait_for_port(process: subprocess.Popen[bytes], port: int) -> None:
    """Wait until the program accepts connections. There is no event for this."""
    deadline = time.monotonic() + STARTS_WITHIN
    while True:
        assert process.poll() is None, f"{process.args!r} exited with {process.returncode}"
        assert time.monotonic() < deadline, f"{process.args!r} does not listen"
        try:
            socket.create_connection(("localhost", port), 1).close()
            break
        except OSError:
            time.sleep(0.05)
