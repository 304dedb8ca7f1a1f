"""The servers of a load: our own, which keep ledgers, and servers of other projects."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.e2e.harness import Json, impatient
from tests.interop import peers
from tests.soak.clients import Target

LEDGER_SERVER = str(Path(__file__).with_name("ledger_server.py"))

LEDGER_TOOLS = """
import os, sys
name = {name!r}
ledger = os.open({file!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

def record(token: str) -> str:
    os.write(ledger, f"{{token}}\\n".encode())
    return f"{{name}} {{token}}"

@server.tool()
def run(token: str) -> str:
    return record(token)

@server.tool()
def look(token: str) -> str:
    return record(token)
"""

STACKS = {
    "sdk1": (".venv-mcp1", "from mcp.server.fastmcp import FastMCP as Server", "server.run()"),
    "sdk2": (".venv", "from mcp.server.mcpserver import MCPServer as Server", "server.run()"),
    "sdk2-http": (
        ".venv",
        "from mcp.server.mcpserver import MCPServer as Server",
        'server.run(transport="streamable-http", port=int(sys.argv[1]))',
    ),
    "fastmcp": (
        ".venv-fastmcp",
        "from fastmcp import FastMCP as Server",
        "server.run(show_banner=False)",
    ),
}
"""Name → the environment that `make interop` creates, and how a server is made and run there."""


def own(count: int, ledgers: Path) -> dict[str, Json]:
    """Return definitions of `count` servers with ledgers, of both eras."""
    definitions: dict[str, Json] = {}
    for number in range(count):
        era = "modern" if number % 3 == 1 else "legacy"
        name = f"{era}-{number}"
        definitions[name] = _own(name, era, ledgers)
    return definitions


def serial(ledgers: Path) -> dict[str, Json]:
    """Return the definition of a server that gets one call at a time, so few clients can call it."""
    return {"serial": {**_own("serial", "legacy", ledgers), "concurrency": "serial"}}


def _own(name: str, era: str, ledgers: Path) -> Json:
    arguments = ["-I", "-S", LEDGER_SERVER, name, str(ledgers / f"{name}.ledger"), "--era", era]
    return {"command": sys.executable, "args": arguments, "restart": impatient()}


@contextmanager
def foreign(ledgers: Path) -> Iterator[tuple[dict[str, Json], list[Target]]]:
    """Run servers of other projects. Returns their definitions and how to call them.

    They are the reference server and the time server of the protocol's authors, and servers on the official
    SDKs and on FastMCP, whose tools keep ledgers. Those that are not installed are left out.
    """
    definitions: dict[str, Json] = {}
    targets: list[Target] = []
    with ExitStack() as stack:
        for name, (venv, imported, runs) in STACKS.items():
            python = peers.ROOT / venv / "bin" / "python"
            if not python.exists():
                continue
            tools = LEDGER_TOOLS.format(name=name, file=str(ledgers / f"{name}.ledger"))
            code = f'{imported}\nserver = Server("{name}")\n{tools}\n{runs}'
            if name.endswith("-http"):
                port = peers.free_port()
                stack.enter_context(peers.listening([str(python), "-c", code, str(port)], port))
                definitions[name] = {"url": f"http://127.0.0.1:{port}/mcp"}
            else:
                definitions[name] = {"command": str(python), "args": ["-c", code]}
            targets.append(Target(name, "ledger", is_ours=False))
        definitions["time"] = {"command": sys.executable, "args": ["-m", "mcp_server_time"]}
        targets.append(Target("time", "time", is_ours=False))
        everything = shutil.which("mcp-server-everything", path=str(peers.ROOT / ".npm/node_modules/.bin"))
        if everything is not None:
            definitions["everything"] = {"command": everything, "args": ["stdio"]}
            definitions["everything-http"] = {
                "url": f"http://127.0.0.1:{stack.enter_context(peers.everything('streamableHttp'))}/mcp"
            }
            names = ("everything", "everything-http")
            targets += [Target(name, "everything", is_ours=False) for name in names]
        for definition in definitions.values():
            definition["restart"] = impatient()
        yield definitions, targets
