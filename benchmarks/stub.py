"""An MCP server over stdio with minimal cost, so that a benchmark measures the path to it.

    python -I -S stub.py

The server supports the revisions 2024-11-05 to 2025-11-25 and has two tools: `echo` with a small result and
`big` with a result of 1 MiB. It prepares responses in advance, searches requests for an ID instead of parsing
them, and answers all requests of a read with one write.
"""

from __future__ import annotations

import os

MIB = 1 << 20
PIPE = 1 << 16
"""The capacity of a pipe. Larger reads cost more and return no more data."""
ECHO = b'{"content":[{"type":"text","text":"pong"}],"isError":false}'
BIG = b'{"content":[{"type":"text","text":"' + b"x" * MIB + b'"}],"isError":false}'
TOOLS = b'{"tools":[%s]}' % b",".join(
    b'{"name":"%s","inputSchema":{"type":"object"},"annotations":{"readOnlyHint":true}}' % name
    for name in (b"echo", b"big")
)
HELLO = (
    b'{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"stub","version":"1"}}'
)


def answer(line: bytes) -> bytes:
    """Return the response to a message with a newline, or nothing for a notification."""
    start = line.find(b'"id":')
    if start < 0:
        return b""
    key = line[start + 5 :].split(b",", 1)[0].rstrip(b"} \r")
    if b'"tools/call"' in line:
        result = BIG if b'"big"' in line else ECHO
    elif b'"tools/list"' in line:
        result = TOOLS
    elif b'"initialize"' in line:
        result = HELLO
    elif b'"ping"' in line:
        result = b"{}"
    else:
        return b'{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"no such method"}}\n' % key
    return b'{"jsonrpc":"2.0","id":%s,"result":%s}\n' % (key, result)


def main() -> None:
    """Serve until stdin is closed."""
    pending = b""
    while chunk := os.read(0, PIPE):
        *lines, pending = (pending + chunk).split(b"\n")
        answers = memoryview(b"".join(map(answer, lines)))
        while answers:
            answers = answers[os.write(1, answers) :]


if __name__ == "__main__":
    main()
