"""A server on stdin and stdout that does once what would hold up or fill an unprotected daemon.

    python -I -S attacker.py [KIND [SIZE]]

A call of the tool `attack` names the kind and the size, in bytes or pieces. With arguments on the command
line, the list of tools is the attack.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

Json = dict[str, Any]
MIB = 1 << 20


def write(data: bytes) -> None:
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(1, view) :]
    except OSError:
        os._exit(0)


def reply(key: bytes, result: bytes, member: bytes = b"result") -> None:
    write(b'{"jsonrpc":"2.0","id":%b,"%b":%b}\n' % (key, member, result))


def filled(start: bytes, piece: bytes, size: int, end: bytes) -> bytes:
    """Return JSON of about `size` bytes, most of it repetitions of `piece`."""
    return start + piece * (size // len(piece)) + end


def text(key: bytes, content: bytes) -> None:
    reply(key, b'{"content":[{"type":"text","text":"%b"}]}' % content)


def note(method: bytes, params: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","method":"%b","params":%b}\n' % (method, params)


def flood(key: bytes, line: bytes, seconds: float) -> None:
    portion, end = line * (65536 // len(line)), time.monotonic() + seconds
    while time.monotonic() < end:
        write(portion)
    text(key, b"done")


def blocks(key: bytes, size: int) -> None:
    reply(key, filled(b'{"content":[', b"{},", size, b"{}]}"))


def nested(key: bytes, size: int) -> None:
    content = b"[" * 400 + b'"' + b"a" * size + b'"' + b"]" * 400
    reply(key, b'{"content":[],"structuredContent":%b}' % content)


def error_data(key: bytes, size: int) -> None:
    reply(key, filled(b'{"code":1,"message":"no","data":[', b"[],", size, b"1]}"), b"error")


def log_text(key: bytes, size: int) -> None:
    write(note(b"notifications/message", filled(b'{"level":"info","data":"', b"\\n", size, b'"}')))
    text(key, b"done")


def surrogates(key: bytes, size: int) -> None:
    write(filled(b'{"jsonrpc":"2.0","method":"\\ud800","x":"', b"\\n", size, b'"}\n'))
    text(key, b"done")


def params(key: bytes, size: int) -> None:
    write(note(b"notifications/message", filled(b'{"level":"info","data":[', b"[],", size, b"1]}")))
    text(key, b"done")


def relist(key: bytes, size: int) -> None:
    for _ in range(size):
        write(note(b"notifications/tools/list_changed", b"{}"))
        time.sleep(0.6)
    text(key, b"done")


def complain(key: bytes, size: int) -> None:
    end = time.monotonic() + size
    while time.monotonic() < end:
        os.write(2, b"error: y\n" * 6000)
    text(key, b"done")


def error_text(key: bytes, size: int) -> None:
    reply(key, filled(b'{"code":1,"message":"', b"\\u001b[31m", size, b'"}'), b"error")


ATTACKS: dict[str, Callable[[bytes, int], None]] = {
    "questions": lambda key, size: text(key, b"?" * size),
    "blocks": blocks,
    "nested": nested,
    "error_data": error_data,
    "error_text": error_text,
    "complain": complain,
    "surrogates": surrogates,
    "params": params,
    "relist": relist,
    "escapes": lambda key, size: text(key, b"\\u00e9" * (size // 6)),
    "log_text": log_text,
    "requests": lambda key, size: flood(key, b'{"jsonrpc":"2.0","id":1,"method":"roots/list"}\n', size),
    "changes": lambda key, size: flood(key, note(b"notifications/tools/list_changed", b"{}"), size),
    "junk_lines": lambda key, size: flood(key, b"y\n", size),
}


HELLO = (
    b'{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true}},'
    b'"serverInfo":{"name":"a","version":"1"}}'
)


def tools(kind: str, size: int, count: int) -> bytes:
    found = b'{"name":"attack","inputSchema":{"type":"object"}}'
    if kind in ("tools", "relisted"):
        one = b',{"name":"t%07d"}'
        first = 0 if kind == "tools" else 1_000_000 * (count % 9)
        found += b"".join(one % (first + number) for number in range(size // (20 if kind == "tools" else 1)))
    return b'{"tools":[%b]}' % found


def main(kind: str = "", size: str = "0") -> None:
    listed = 0
    for line in sys.stdin.buffer:
        request: Json = json.loads(line)
        if "id" not in request or "method" not in request:
            continue
        key, method = json.dumps(request["id"]).encode(), request["method"]
        if method == "initialize":
            reply(key, HELLO)
        elif method == "tools/list":
            listed += 1
            reply(key, tools(kind, int(size), listed))
        elif method == "tools/call" and request["params"]["name"] == "attack":
            given = request["params"]["arguments"]
            ATTACKS[given["kind"]](key, given["size"])
        elif method in ("tools/call", "ping"):
            reply(key, b'{"content":[]}')
        else:
            reply(key, b'{"code":-32601,"message":"no"}', b"error")


if __name__ == "__main__":
    main(*sys.argv[1:])
