"""A scripted daemon: a thread that answers JSON-RPC lines on a Unix socket."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

NOW = "2026-11-21T06:30:00.000Z"
ENTRY = {
    "at": NOW,
    "what": "state",
    "server": "time",
    "state": "disabled",
    "message": "it was switched off",
    "by": "zed (pid 7)",
    "kind": None,
    "exit_code": None,
    "signal": None,
    "times": 1,
}
"""An entry of the history."""

Answer = Callable[["Caller", dict[str, Any]], object]


class Fault(Exception):
    """Raised by an answer function; sent as a JSON-RPC error."""

    def __init__(self, message: str, *, rpc: int = -32000, **data: object) -> None:
        super().__init__(message)
        self.error = {"code": rpc, "message": message, "data": data}


class Raw(str):
    """A result as exact JSON text."""

    __slots__ = ()


class Silence:
    """Returned by an answer that leaves the request unanswered."""


class Caller:
    """The connection and request that an answer function is called for."""

    def __init__(self, connection: socket.socket, request: object) -> None:
        self.connection = connection
        self.request = request

    def notify(self, method: str, params: object) -> None:
        self.line({"jsonrpc": "2.0", "method": method, "params": params})

    def line(self, message: object) -> None:
        self.connection.sendall(json.dumps(message).encode() + b"\n")

    def hang_up(self) -> None:
        self.connection.shutdown(socket.SHUT_RDWR)


class FakeDaemon:
    """`answers` maps a method to a value or a function; `requests` lists all requests in order."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.answers: dict[str, object] = {"mcpd/history": {"entries": [], "dropped": 0}}
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.arrived = threading.Condition()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._connections: list[socket.socket] = []
        self._threads[0].start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._threads[0].join(30)
        for connection in self._connections:
            with contextlib.suppress(OSError):  # the client may have closed it first
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive()
        for connection in self._connections:
            connection.close()

    def params_of(self, method: str) -> dict[str, Any]:
        """Return the params of the last request for `method`, without the progress token."""
        found = [params for name, params in self.requests if name == method][-1]
        return {key: value for key, value in found.items() if key != "_meta"}

    def wait_for(self, method: str) -> dict[str, Any]:
        """Wait up to 60 s for a message and return its params."""
        with self.arrived:
            assert self.arrived.wait_for(lambda: any(name == method for name, _ in self.requests), 60), method
        return self.params_of(method)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._connections.append(connection)
            thread = threading.Thread(target=self._serve, args=[connection], daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with connection.makefile("rb") as lines:
            try:
                for line in lines:
                    self._answer(connection, json.loads(line))
            except OSError:
                return  # the client went away in the middle of our answer

    def _answer(self, connection: socket.socket, message: dict[str, Any]) -> None:
        method, request = message["method"], message.get("id")
        with self.arrived:
            self.requests.append((method, message["params"]))
            self.arrived.notify_all()
        if request is None:
            return
        answer = self.answers.get(method, Fault(f"no such method: {method}", rpc=-32601))
        try:
            result = answer(Caller(connection, request), message["params"]) if callable(answer) else answer
            if isinstance(result, Fault):
                raise result
        except Fault as fault:
            text = json.dumps({"jsonrpc": "2.0", "id": request, "error": fault.error})
        else:
            if isinstance(result, Silence):
                return
            body = result if isinstance(result, Raw) else json.dumps(result)
            text = f'{{"jsonrpc":"2.0","id":{request},"result":{body}}}'
        connection.sendall(text.encode("utf-8", "surrogateescape") + b"\n")


def server(name: str = "time", status: str = "connected", **more: object) -> dict[str, Any]:
    """A ServerStatus as the daemon writes it."""
    return {
        "name": name,
        "status": status,
        "since": NOW,
        "transport": "stdio",
        "reason": "",
        "pid": 4711 if status == "connected" else None,
        "tools": 2 if status == "connected" else 0,
        "resources": 0,
        "prompts": 0,
        "restarts": 0,
        "attempts": 0,
        "last_error": None,
        "last_ok": None,
        "retry_at": None,
        "updated": NOW if status == "connected" else None,
        "protocol_version": "2025-11-25" if status == "connected" else None,
        "era": "legacy",
        "session": None,
        "server_info": {"name": f"mcp-{name}", "version": "1.2.3", "title": "", "instructions": ""},
        "capabilities": ["tools"],
        "lazy": False,
        "in_flight": 0,
        "warnings": [],
        **more,
    }


def failure(message: str = "exited with status 1", **more: object) -> dict[str, Any]:
    """A Failure as the daemon writes it."""
    return {
        "kind": "exited",
        "message": message,
        "at": NOW,
        "exit_code": 1,
        "signal": None,
        "stderr": [],
        "crash_loop": False,
        **more,
    }


def status(*servers: dict[str, Any], **config: object) -> dict[str, Any]:
    """A DaemonStatus as the daemon writes it."""
    from mcpd import __version__

    return {
        "servers": list(servers),
        "config": {
            "source": "/home/me/.config/mcpd/config.json",
            "path": "/home/me/.config/mcpd/config.json",
            "generation": 1,
            "loaded_at": NOW,
            "problems": [],
            **config,
        },
        "daemon": {
            "version": __version__,
            "pid": 1,
            "started_at": NOW,
            "socket": "/run/user/1000/mcpd/mcpd.sock",
            "instance": "abc",
            "clients": 1,
        },
    }


def detail(of: dict[str, Any], **more: object) -> dict[str, Any]:
    """A ServerDetail as the daemon writes it."""
    return {
        "server": of,
        "command": ["uvx", "mcp-server-time", "--tz", "Europe/Paris now"],
        "cwd": "/home/me",
        "env": ["HOME", "PATH"],
        "executable": "/usr/bin/uvx",
        "path": "/usr/bin:/bin",
        "log": ["2026-11-21T06:30:00.123Z ready"],
        "log_file": "/home/me/.local/state/mcpd/logs/time.log",
        "junk_lines": 0,
        "junk_sample": "",
        "late_replies": 0,
        "negotiation": [{"at": NOW, "step": "initialize", "outcome": "2025-11-25", "ms": 12.3}],
        "definition": {"command": "uvx", "args": ["mcp-server-time"]},
        **more,
    }
