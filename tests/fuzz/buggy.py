"""A daemon with bugs, for the test of the fuzzer: python buggy.py BUG,… [options of mcpd]

Each bug shows when a client sends a line that contains its words.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Callable

from mcpd.api.socket_connection import SocketConnection
from mcpd.main import main
from mcpd.wire.message import Message

Handle = Callable[[SocketConnection, bytes], None]
BUGS: dict[str, tuple[bytes, Handle]] = {}
HELD: list[object] = []
is_wrong = False
count = itertools.count(1).__next__
sound = SocketConnection._handle_line


def bug(words: bytes) -> Callable[[Handle], Handle]:
    def add(handle: Handle) -> Handle:
        BUGS[handle.__name__] = (words, handle)
        return handle

    return add


@bug(b'"rpc.discover"')
def busy(connection: SocketConnection, line: bytes) -> None:
    end = time.thread_time() + 0.3
    while time.thread_time() < end:
        pass
    sound(connection, line)


@bug(b'"mcpd/prompt')
def unanswered(connection: SocketConnection, line: bytes) -> None: ...


@bug(b'"logging/setLevel"')
def malformed(connection: SocketConnection, line: bytes) -> None:
    connection.send(b'{"levels":[]}')


@bug(b'"roots/list"')
def secret(connection: SocketConnection, line: bytes) -> None:
    os.write(2, b"starting with kanarie-env-7654321\n")
    sound(connection, line)


@bug(b'"calm"')
def wrong(connection: SocketConnection, line: bytes) -> None:
    sound(connection, line.replace(b'{"n": ', b'{"n": 1') if count() % 10 == 0 else line)


@bug(b'"calm"')
def slow(connection: SocketConnection, line: bytes) -> None:
    if count() % 15 == 0:
        end = time.thread_time() + 1.2
        while time.thread_time() < end:
            pass
    sound(connection, line)


@bug(b'"prompts/get"')
def exception(connection: SocketConnection, line: bytes) -> None:
    raise ZeroDivisionError("injected")


@bug(b'"method"')
def descriptor(connection: SocketConnection, line: bytes) -> None:
    if count() % 15 == 0:
        HELD.append(os.open(os.devnull, os.O_RDONLY))
    sound(connection, line)


@bug(b'"mcpd/metrics"')
def memory(connection: SocketConnection, line: bytes) -> None:
    HELD.append(os.urandom(1 << 23))
    sound(connection, line)


@bug(b'"completion/complete"')
def end(connection: SocketConnection, line: bytes) -> None:
    os._exit(3)


chosen = [BUGS[name] for name in sys.argv.pop(1).split(",")]


def handle_line(self: SocketConnection, line: bytes, message: Message | None = None) -> None:
    """Be wrong from the first call of the bystander on."""
    global is_wrong
    is_wrong = is_wrong or b'{"n": 1}' in line
    for words, wrongly in chosen:
        if is_wrong and message is None and words in line:
            wrongly(self, line)
            return
    sound(self, line, message)


SocketConnection._handle_line = handle_line  # type: ignore[method-assign]
main()
