"""What all ways into the daemon have in common: they send the input of a case, and check the answers."""

from __future__ import annotations

import json
import socket
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress

from tests.e2e.harness import BOUND, Json
from tests.fuzz.generate import DIE, die
from tests.fuzz.world import World

PATIENCE = 1.0
"""Seconds for which the answers to one input are read, if none is awaited."""


class Wrong(Exception):
    """The daemon did not do what it must do."""

    number: int | None = None
    """The case; None if it is not known."""


def wrong(number: int, what: str) -> Wrong:
    error = Wrong(what)
    error.number = number
    return error


class Target:
    """One way in. `batch` is how many cases are sent between two looks at the daemon."""

    name: str
    batch = 20
    counts_cpu = True
    """Whether the processor time of the daemon's event loop is checked."""

    def __init__(self, world: World) -> None:
        self.world = world

    def send(self, number: int) -> None:
        """Send one case, and check the answers. Raises Wrong."""
        raise NotImplementedError

    def send_all(self, numbers: Iterable[int]) -> None:
        """Send several cases. Raises Wrong with the number of the case."""
        for number in numbers:
            try:
                self.send(number)
            except Exception as error:
                raise wrong(number, f"{type(error).__name__}: {error}") from error

    def close(self) -> None:
        """Disconnect everything that cases have left open."""

    def die(self, number: int) -> DIE:
        return die(self.world.seed, self.name, number)


def connect(path: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(BOUND)
    try:
        connection.connect(path)
    except OSError:
        connection.close()
        raise
    return connection


_ENDLESS = ("listen", "events", "logs", "tap", "attach", "read")
"""Requests whose answers come at the end of something, or wait for servers that are starting."""
_LONGEST_ID = 1000
_ASKING = ("ask", "wants", "typed")
"""Tools that ask the client, which does not answer."""


def must_answer(sent: Sequence[bytes]) -> set[str]:
    """Return the ids (as JSON) of the well-formed requests among these lines that must get an answer soon.

    Others may wait for the client, for a person or without end, or may be cancelled.
    """
    data = b"\n".join(sent)
    if not data.startswith(b"{") or b"cancelled" in data or b"\\u00" in data or data.count(b"attach") > 1:
        return set()
    found: Counter[str] = Counter()
    for line in data.split(b"\n"):
        with suppress(ValueError, RecursionError):
            message = json.loads(line, object_pairs_hook=_members, parse_constant=_refuse)
            if isinstance(message, dict) and "id" in message:
                found[json.dumps(message["id"])] += 1 if _is_answered_soon(message) else 2
    return {key for key, count in found.items() if count == 1}


def _is_answered_soon(message: dict[str, Json]) -> bool:
    method, key, params = message.get("method"), message["id"], message.get("params", {})
    if not isinstance(key, int | str) or isinstance(key, bool) or len(str(key)) > _LONGEST_ID:
        return False
    if not str(key).isascii():  # half a character is replaced
        return False
    if message.get("jsonrpc") != "2.0" or not isinstance(method, str) or not isinstance(params, dict):
        return False
    asks = method.endswith("call") and str(params.get("name", params.get("tool"))).endswith(_ASKING)
    return not asks and not method.endswith(_ENDLESS)


def _members(pairs: list[tuple[str, Json]]) -> Json:
    if len({name for name, _ in pairs}) < len(pairs):
        raise ValueError("the same name twice")
    return dict(pairs)


def _refuse(constant: str) -> Json:
    raise ValueError(constant)


def all_answers(connection: socket.socket, awaited: set[str]) -> bytes:
    """Read until all these requests are answered. Raises Wrong."""
    got, seen, missing = b"", 0, set(awaited)
    end = time.monotonic() + BOUND
    while missing:
        connection.settimeout(max(0.001, end - time.monotonic()))
        try:
            portion = connection.recv(1 << 16)
        except TimeoutError:
            portion = b""
        except OSError as error:
            raise Wrong(f"never answered: {sorted(missing)}: {error!r}") from None
        if not portion:
            raise Wrong(f"never answered: {sorted(missing)}; got {got[-300:]!r}")
        got += portion
        whole = got.rfind(b"\n") + 1
        check_lines(got[seen:whole])
        for line in got[seen:whole].splitlines():
            with suppress(ValueError, RecursionError):
                message = json.loads(line)
                if isinstance(message, dict) and "method" not in message:
                    missing.discard(json.dumps(message.get("id")))
        seen = whole
    return got


def first_answer(connection: socket.socket, patience: float = PATIENCE) -> bytes:
    """Return the beginning of the response, and what follows soon. Raises Wrong if there is none."""
    connection.settimeout(BOUND)
    try:
        got = connection.recv(1 << 16)
    except OSError as error:
        raise Wrong(f"no response to a request: {error!r}") from None
    if not got:
        raise Wrong("no response to a request, but the end")
    return got + (answers(connection) if patience else b"")


def answers(connection: socket.socket) -> bytes:
    """Return what the daemon answers soon. It gets a moment to answer what depends on slow servers.

    Streams, such as `mcpd/tap` of the bystander's server, do not end while others call it, so `PATIENCE`
    limits the whole.
    """
    got = b""
    end = time.monotonic() + PATIENCE
    with suppress(OSError):
        connection.shutdown(socket.SHUT_WR)
        connection.settimeout(0.02)
        while time.monotonic() < end and (portion := connection.recv(1 << 16)):
            got += portion
    return got


def check_lines(got: bytes) -> None:
    """Raise Wrong if a whole line is not a JSON-RPC message."""
    for line in got.split(b"\n")[:-1]:
        if line.startswith(b"HTTP/1.1 "):  # the client's line was taken for one
            return
        try:
            message = json.loads(line)
        except (ValueError, RecursionError) as error:
            # Results pass as bytes, so a server's odd ones do, too; what mcpd writes around them is right.
            if not line.startswith(b'{"jsonrpc":"2.0",'):
                raise Wrong(f"not a message: {error}: {line[:300]!r}") from None
            continue
        for each in message if isinstance(message, list) else [message]:
            if not isinstance(each, dict) or each.get("jsonrpc") != "2.0":
                raise Wrong(f"not a message: {line[:300]!r}")
            refusal = each.get("error")
            if isinstance(refusal, dict) and "an error in mcpd itself" in str(refusal.get("message")):
                raise Wrong(f"{line[:500]!r}")
