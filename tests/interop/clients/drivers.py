"""How each client is started, and what it saw: one verb for all, whatever the client.

    seen = driver.use(stdio("mcpctl", "bridge", "files"), [("echo", {"text": "x"})], home=tmp_path)

A client gets a home of its own, and is ended with all that it has started, within a bound.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

import attrs

from tests.interop.clients.job import Report

HERE = Path(__file__).parent
ROOT = HERE.parent.parent.parent
BOUND = 240.0
"""Seconds for one use of a client: an interpreter, a handshake and a few calls, on a machine that is busy."""

Json = dict[str, Any]
Call = tuple[str, Mapping[str, Any]]


class ClientFailed(AssertionError):
    """The client ended with an error, or did not end; the message holds what it wrote."""


def stdio(command: str, *args: str, environ: Mapping[str, str] | None = None) -> Json:
    """A server that the client starts itself, as an entry of `mcpServers`."""
    return {"command": command, "args": list(args), "env": dict(environ or {})}


def http(url: str, token: str | None = None) -> Json:
    """A server at a URL, likewise; `token` is sent as a bearer's. A path that ends in `/sse` is HTTP+SSE."""
    entry: Json = {"type": "sse" if url.endswith("/sse") else "http", "url": url}
    if token is not None:
        entry["headers"] = {"Authorization": f"Bearer {token}"}
    return entry


class Driver(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def library(self) -> bool:
        """Whether it makes its calls at once and can be asked by the server; a command line cannot."""
        ...

    def missing(self) -> str | None:
        """Why it cannot be run here, for `pytest.skip`."""
        ...

    def use(self, server: Json, calls: Sequence[Call], home: Path, name: str = "somebody") -> Report:
        """Connect, list the tools, make the calls, leave. Raises ClientFailed."""
        ...


# ── libraries ───────────────────────────────────────────────────────────────────────────────────────────


@attrs.frozen
class Library:
    """A program of ours around a library: it does a `job`."""

    name: str
    argv: tuple[str, ...]
    needs: Path
    library: bool = True

    def missing(self) -> str | None:
        return None if self.needs.exists() else f"{self.name} is not there: `make interop` installs it"

    def use(self, server: Json, calls: Sequence[Call], home: Path, name: str = "somebody") -> Report:
        job = {"server": server, "name": name, "calls": [list(call) for call in calls]}
        return Report(**json.loads(run(self.argv, home, json.dumps(job))))


def venv(which: str) -> Path:
    return ROOT / which / "bin" / "python"


def python(name: str, interpreter: Path, module: str, package: str) -> Library:
    found = next(
        interpreter.parent.parent.glob(f"lib/*/site-packages/{package}"), interpreter.parent / package
    )
    return Library(name, (str(interpreter), "-m", f"tests.interop.clients.{module}"), found)


def modules(name: str) -> Path:
    return HERE / "node_modules" / name


def node() -> str:
    """A node from 24 on, which mcporter asks for: the one installed beside the clients, or the machine's."""
    ours = modules(".bin") / "node"
    return str(ours) if ours.exists() else shutil.which("node") or "node"


def javascript(name: str, program: str, package: str) -> Library:
    return Library(name, (node(), str(HERE / program)), modules(package))


# ── command lines ───────────────────────────────────────────────────────────────────────────────────────


@attrs.frozen
class Inspector:
    """The official Inspector, `--cli`; each use is a connection."""

    name: str = "inspector"
    library: bool = False

    def missing(self) -> str | None:
        return npm_missing(self.name, "@modelcontextprotocol/inspector")

    def use(self, server: Json, calls: Sequence[Call], home: Path, name: str = "somebody") -> Report:
        config = written(server, home)
        argv = (*npm("mcp-inspector"), "--cli", "--config", str(config), "--server", "server", "--method")
        report = Report()
        listed = json.loads(run((*argv, "tools/list"), home))
        report.tools = [tool["name"] for tool in listed["tools"]]
        for tool, arguments in calls:
            texts = {k: json.dumps(v) if isinstance(v, dict) else v for k, v in arguments.items()}
            pairs = [f"{key}={value}" for key, value in texts.items()]
            flags = ("--tool-name", tool, *(("--tool-arg", *pairs) if pairs else ()))
            answered(report, run((*argv, "tools/call", *flags), home, allow=TOOL_FAILED))
        return report


@attrs.frozen
class Mcporter:
    """mcporter; each use is a connection."""

    name: str = "mcporter"
    library: bool = False

    def missing(self) -> str | None:
        return npm_missing(self.name, "mcporter")

    def use(self, server: Json, calls: Sequence[Call], home: Path, name: str = "somebody") -> Report:
        argv = (*npm("mcporter"), "--config", str(written(server, home)))
        report = Report()
        listed = json.loads(run((*argv, "list", "server", "--json", "--exit-code"), home))
        report.tools = [tool["name"] for tool in listed["tools"]]
        for tool, arguments in calls:
            flags = (f"server.{tool}", "--args", json.dumps(arguments), "--output", "json")
            answered(report, run((*argv, "call", *flags), home, allow=TOOL_FAILED))
        return report


@attrs.frozen
class Mcpc:
    """Apify's mcpc, whose bridge keeps one connection until the session is closed."""

    name: str = "mcpc"
    library: bool = False

    def missing(self) -> str | None:
        return npm_missing(self.name, "@apify/mcpc")

    def use(self, server: Json, calls: Sequence[Call], home: Path, name: str = "somebody") -> Report:
        # Its bridge listens in MCPC_HOME_DIR, and the path of a Unix socket has at most 107 bytes.
        with TemporaryDirectory(prefix="mcpc-", dir="/tmp") as directory:
            return self._use(server, calls, home, name, {"MCPC_HOME_DIR": directory})

    def _use(
        self, server: Json, calls: Sequence[Call], home: Path, name: str, more: Mapping[str, str]
    ) -> Report:
        argv = (*npm("mcpc"), "--json")
        session = f"@{name}"
        report = Report()
        connect = (*argv, "connect", f"{written(server, home)}:server", session)
        patient = {"NODE_OPTIONS": f'--require "{HERE / "patient.cjs"}"'}
        opened = json.loads(run(connect, home, more={**more, **patient}))
        try:
            report.protocol = opened.get("protocolVersion") or ""
            listed = json.loads(run((*argv, session, "tools-list"), home, more=more))
            report.tools = [tool["name"] for tool in listed]
            for tool, arguments in calls:
                flags = (session, "tools-call", tool, json.dumps(arguments))
                answered(report, run((*argv, *flags), home, allow=TOOL_FAILED, more=more))
        finally:
            run((*argv, "close", session), home, more=more)
        return report


TOOL_FAILED = frozenset(range(1, 8))
"""Exit codes that may mean that the tool failed: the answer on stdout says whether it did."""


def npm_missing(name: str, package: str) -> str | None:
    return None if modules(package).exists() else f"{name} is not there: `make interop` installs it"


def npm(program: str) -> tuple[str, ...]:
    return node(), str((modules(".bin") / program).resolve())


def written(server: Json, home: Path) -> Path:
    """An `mcpServers` file with this one server in it."""
    config = home / "clients.json"
    config.write_text(json.dumps({"mcpServers": {"server": server}}))
    return config


def answered(report: Report, out: str) -> None:
    result = json.loads(out)
    texts = [part["text"] for part in result["content"] if part["type"] == "text"]
    report.answer("".join(texts), bool(result.get("isError")))


# ── running them ────────────────────────────────────────────────────────────────────────────────────────


def run(
    argv: Sequence[str],
    home: Path,
    stdin: str = "",
    allow: frozenset[int] = frozenset(),
    more: Mapping[str, str] = {},
) -> str:
    """What a program wrote on its stdout. Its whole process group ends with it. `more`: environment."""
    process = subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=home,
        env=environment(home, more),
        start_new_session=True,
    )
    try:
        out, error = process.communicate(stdin, timeout=BOUND)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, error = process.communicate(timeout=60)
        raise ClientFailed(f"{describe(argv)} did not end within {BOUND} s\n{error[-3000:]}") from None
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(60)
    if process.returncode and not (process.returncode in allow and out.strip()):
        raise ClientFailed(
            f"{describe(argv)} ended with {process.returncode}\n{out[-1000:]}\n{error[-3000:]}"
        )
    return out


def describe(argv: Sequence[str]) -> str:
    return " ".join(Path(part).name if part.startswith("/") else part for part in argv)


def environment(home: Path, more: Mapping[str, str]) -> dict[str, str]:
    """Nothing of the user's, and nothing that asks or calls home."""
    kept = {
        name: text for name, text in os.environ.items() if not name.startswith(("MCP", "XDG_", "FASTMCP"))
    }
    return kept | {
        "HOME": str(home),
        "PYTHONPATH": str(ROOT),
        **more,
        "MCPORTER_LIST_TIMEOUT": str(int(BOUND * 1000)),
        "MCPORTER_CALL_TIMEOUT": str(int(BOUND * 1000)),
        "MCP_INSPECTOR_SECRET_STORE": "memory",
        "FASTMCP_CHECK_FOR_UPDATES": "off",
        "NO_COLOR": "1",
    }


DRIVERS: tuple[Driver, ...] = (
    python("python-sdk-1", venv(".venv-mcp1"), "python1", "mcp"),
    python("python-sdk-2", Path(sys.executable), "python2", "mcp"),
    python("fastmcp-4", venv(".venv-fastmcp"), "fastmcp4", "fastmcp"),
    javascript("typescript-sdk-1", "typescript1.mjs", "@modelcontextprotocol/sdk"),
    javascript("typescript-sdk-2", "typescript2.mjs", "@modelcontextprotocol/client"),
    Inspector(),
    Mcporter(),
    Mcpc(),
)
