"""An MCP server over stdio with minimal cost, so that a benchmark measures the path to it.

    python -I -S stub.py [legacy] [kindest] [together=N]

It is a usual server: it supports the revisions 2025-11-25 and 2026-07-28, its tools declare nothing, its
results look like those of the official SDK, and it answers each request with a write of its own. As
`legacy`, it supports only 2025-11-25. As `kindest`, it spares a gateway the most work: its tools also
declare `readOnlyHint`, and it answers all requests of a read with one write. `together=N` withholds the
answers until N requests have come, so that whoever reads them does the same work in each run.

The tool `echo` has a small result, `big` one of 1 MiB, and `huge` one of 16 MiB. The server prepares each
result once and searches requests for an ID instead of parsing them.
"""

from __future__ import annotations

import os
import sys

MIB = 1 << 20
PIPE = 1 << 16
"""The capacity of a pipe. Larger reads cost more and return no more data."""
TEXTS = {"echo": (b"pong", 1), "big": (b"x", MIB), "huge": (b"x", 16 * MIB)}
"""For each tool the text of its result, as a text and how often it is repeated."""
HELLO = b'{"protocolVersion":"%b","capabilities":{"tools":{}},"serverInfo":{"name":"stub","version":"1"}}'
_OLDER = b"2025-06-18", b"2025-03-26"
"""Revisions that the stub accepts from a client that asks for them, as most servers do."""
_IDENTITY = b'"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"stub","version":"1"}}}'
COMPLETE = b',"resultType":"complete",' + _IDENTITY
"""The end of results of revision 2026-07-28, in the order in which the official Python SDK writes it."""
DISCOVERED = (
    b'{"cacheScope":"private","capabilities":{"tools":{}},"resultType":"complete",'
    b'"supportedVersions":["2026-07-28","2025-11-25"],"ttlMs":60000,' + _IDENTITY
)
_MODERN = b'"io.modelcontextprotocol/protocolVersion"'


def result(tool: str, end: bytes = b"}") -> bytes:
    """Return the result of a tool."""
    text, times = TEXTS[tool]
    return b'{"content":[{"type":"text","text":"%b"}],"isError":false%b' % (text * times, end)


def tools(annotations: bytes) -> bytes:
    """Return the result of `tools/list`, without its last brace."""
    return b'{"tools":[%b]' % b",".join(
        b'{"name":"%b","inputSchema":{"type":"object"}%b}' % (name.encode(), annotations) for name in TEXTS
    )


class Stub:
    """The responses of one server."""

    def __init__(self, *, legacy: bool, kindest: bool = False) -> None:
        self._legacy = legacy
        self._tools = tools(b',"annotations":{"readOnlyHint":true}' if kindest else b"")
        self._results: dict[tuple[str, bytes], bytes] = {}

    def answer(self, line: bytes) -> bytes:
        """Return the response to a message with a newline, or nothing for a notification."""
        start = line.find(b'"id":')
        if start < 0:
            return b""
        key = line[start + 5 :].split(b",", 1)[0].rstrip(b"} \r")
        end = COMPLETE if not self._legacy and _MODERN in line else b"}"
        if b'"tools/call"' in line:
            answer = self._result("huge" if b'"huge"' in line else "big" if b'"big"' in line else "echo", end)
        elif b'"tools/list"' in line:
            hints = b"" if self._legacy else b',"ttlMs":60000,"cacheScope":"private"'
            answer = self._tools + hints + end
        elif b'"initialize"' in line:
            answer = HELLO % next((each for each in _OLDER if each in line), b"2025-11-25")
        elif b'"ping"' in line:
            answer = b"{}"
        elif b'"server/discover"' in line and not self._legacy:
            answer = DISCOVERED
        else:
            return b'{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"no such method"}}\n' % key
        return b'{"jsonrpc":"2.0","id":%s,"result":%s}\n' % (key, answer)

    def _result(self, tool: str, end: bytes) -> bytes:
        if (tool, end) not in self._results:
            self._results[tool, end] = result(tool, end)
        return self._results[tool, end]


def write(data: bytes) -> None:
    """Write everything to stdout."""
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


def main() -> None:
    """Serve until stdin is closed."""
    kindest = "kindest" in sys.argv[1:]
    together = next((int(each[9:]) for each in sys.argv[1:] if each.startswith("together=")), 1)
    stub = Stub(legacy=kindest or "legacy" in sys.argv[1:], kindest=kindest)
    pending, withheld = b"", list[bytes]()
    while chunk := os.read(0, PIPE):
        *lines, pending = (pending + chunk).split(b"\n")
        answers = filter(None, map(stub.answer, lines))
        if kindest:
            write(b"".join(answers))
            continue
        for line in answers:
            if together > 1 and b'"content":' in line:
                withheld.append(line)
                if len(withheld) == together:
                    write(b"".join(withheld))
                    withheld.clear()
            else:
                write(line)


if __name__ == "__main__":
    main()
