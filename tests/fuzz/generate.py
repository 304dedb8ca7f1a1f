"""Random inputs with the structure of real ones: every case is determined by its seed, target and number."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import attrs

Json = Any
DIE = random.Random


def die(seed: int, target: str, number: int) -> DIE:
    """Return the source of randomness of one case."""
    return random.Random(f"{seed}/{target}/{number}")


def split(text: str) -> tuple[str, ...]:
    return tuple(text.split())


@attrs.frozen
class Spelled:
    """JSON text that is written as it is, valid or not."""

    text: bytes


def deep(depth: int, begin: bytes = b"[", end: bytes = b"]") -> Spelled:
    return Spelled(begin * depth + b"1" + end * depth)


NAMES = split(
    """
    jsonrpc id method params result error code message data name arguments _meta progressToken
    progress total protocolVersion capabilities clientInfo serverInfo version tools resources prompts
    templates uri cursor nextCursor listChanged subscribe level logger roots elicitation sampling form
    url mode requestedSchema properties type object enum content text isError structuredContent
    resultType inputRequests inputResponses requestState ttlMs cacheScope task taskId status
    pollInterval statusMessage ttl notifications resourceSubscriptions toolsListChanged subscriptionId
    server tool timeout raw wait reason requestId ref argument value context limit lines follow
    methods servers definition save profile client pid cwd inputSchema outputSchema annotations
    readOnlyHint title icons execution taskSupport mimeType blob description required
    additionalProperties pattern oneOf anyOf $ref $schema io.modelcontextprotocol/protocolVersion
    io.modelcontextprotocol/clientCapabilities io.modelcontextprotocol/logLevel
    io.modelcontextprotocol/subscriptionId
    """
)
"""Names of members in all protocols."""
CANARIES = {
    name: f"kanarie-{name}-{number}"
    for number, name in enumerate(("env", "stored", "header", "argument", "access", "refresh"), 7654321)
}
"""Secrets of the world's servers. They occur in inputs, and nothing that the daemon writes contains them."""
_TOKENS: Sequence[bytes] = (
    b"null true false 0 -1 1.5 -0.0 1e400 -1e400 1e-400 9007199254740993 1e3 NaN Infinity -Infinity 0x10 01 "
    b"1. .5 +1 tru nul '' undefined"
).split()
_STRINGS: Sequence[bytes] = (
    b"",
    b"\\ud800",
    b"\\udfff\\ud800",
    b"\\u0000",
    b"\\u202e\\u2028",
    b"\\ud83d\\ude00",
    b"\xf0\x9f\x98\x80",
    b"\xff\xfe",
    b"\xed\xa0\x80",
    b"\xc3",
    b"\\n\\r\\t\\u001b[2J",
    b"\n",
    b"\x00",
    b"\\",
    b"\\x",
    b"isError",
    b"../../etc/passwd",
    b"${secret:X}${FOO:-${BAR}}",
    b"file:///a/b?c=d#e",
    b"http://[::1",
    b"a" * 300,
    b"*",
    b"%00%ff",
    *map(str.encode, CANARIES.values()),
)


def odd_value(dice: DIE) -> Spelled:
    """Return a value that somebody may not have thought of."""
    kind = dice.randrange(12)
    if kind < 4:
        return Spelled(dice.choice(_TOKENS))
    if kind < 7:
        return Spelled(b'"%b"' % dice.choice(_STRINGS))
    if kind == 7:
        return Spelled(dice.choice((b"[]", b"{}", b"[{}]", b'{"":{}}', b"[null]", b"[[],[]]", b"[", b"}")))
    if kind == 8:
        begin, end = dice.choice(((b"[", b"]"), (b'{"a":', b"}"), (b"[{},", b"]"), (b"[", b"")))
        return deep(dice.choice((5, 50, 500, 1100, 3000)), begin, end)
    if kind == 9:
        return Spelled(b"-%d" % dice.getrandbits(dice.choice((31, 63, 64, 200, 4000))))
    if kind == 10:
        return Spelled(b'"%b"' % (dice.choice(_STRINGS) * dice.choice((2, 30, 1000))))
    item = dice.choice((b"{}", b"[]", b"1", b'""', b'{"a":1}', b'{"type":"text","text":"?"}', b'"a":1'))
    count = dice.choice((3, 30, 300, 12_000))
    return Spelled(dice.choice((b"[%b]", b"{%b}", b'"%b"')) % b",".join([item] * count))


def huge_value(dice: DIE) -> Spelled:
    """Return up to a few megabytes of something that costs more than its bytes if it is opened."""
    item = dice.choice(
        (b"{}", b"[]", b"?", b"\\n", b"\\ud800", b'"a":1', b"0,", b"%", b"\\u0041", b" ", b"a=")
    )
    count = dice.randrange(1000, 1_500_000) // (len(item) + 1) // dice.choice((1, 10, 100))
    return Spelled(
        dice.choice((b"[%b]", b"{%b}", b'"%b"', b'{"a":[%b]}'))
        % dice.choice((b",", b"")).join([item] * count)
    )


class Writer:
    """Writes JSON, with mistakes at a rate that differs from message to message."""

    def __init__(self, dice: DIE) -> None:
        self._dice = dice
        self._rate = dice.choice((0.0, 0.0, 0.01, 0.05, 0.2))
        self._spaced = dice.random() < 0.1
        self._escaped = dice.random() < 0.05

    def write(self, value: Json) -> bytes:
        dice = self._dice
        if isinstance(value, Spelled):
            return value.text
        if self._rate and dice.random() < self._rate:
            odd = odd_value(dice) if dice.random() < 0.998 else huge_value(dice)
            return odd.text
        if isinstance(value, dict):
            return self._object(value)
        if isinstance(value, list | tuple):
            items = [self.write(item) for item in value]
            if self._wrong():
                items += items[: dice.randrange(3)]
            return b"[" + self._comma().join(items) + b"]"
        if isinstance(value, str):
            return self._string(value)
        if value is None or isinstance(value, bool):
            return json.dumps(value).encode()
        return str(value).encode()

    def _object(self, value: dict[str, Json]) -> bytes:
        dice, pairs = self._dice, []
        for name, inner in value.items():
            if self._wrong() and dice.random() < 0.4:
                continue
            key = dice.choice(NAMES) if self._wrong() and dice.random() < 0.3 else name
            pairs.append(self._string(key) + self._colon() + self.write(inner))
        if self._wrong():
            pairs.insert(
                dice.randrange(len(pairs) + 1),
                self._string(dice.choice(NAMES)) + self._colon() + odd_value(dice).text,
            )
        if self._wrong():
            dice.shuffle(pairs)
        return b"{" + self._comma().join(pairs) + b"}"

    def _string(self, text: str) -> bytes:
        if self._escaped:
            return b'"' + b"".join(b"\\u%04x" % min(ord(each), 0xFFFF) for each in text) + b'"'
        plain = text.encode("utf-8", "surrogatepass")
        return b'"' + plain.replace(b"\\", b"\\\\").replace(b'"', b'\\"').replace(b"\n", b"\\n") + b'"'

    def _wrong(self) -> bool:
        return self._rate > 0 and self._dice.random() < self._rate

    def _comma(self) -> bytes:
        return b" , " if self._spaced else b","

    def _colon(self) -> bytes:
        return b"\t: " if self._spaced else b":"


def garble(data: bytes, dice: DIE) -> bytes:
    """Return the bytes with a few of them changed, moved, repeated or cut off; usually unchanged."""
    if dice.random() < 0.85 or not data:
        return data
    for _ in range(dice.choice((1, 1, 2, 5))):
        at = dice.randrange(len(data) + 1)
        end = min(len(data), at + dice.choice((0, 1, 1, 4, 50)))
        new = dice.choice((b"", b"\0", b"\xff", b'"', b"}", b"[", b"\\", b"\n", b"\r\n", data[at:end] * 2))
        if dice.random() < 0.3:
            new = dice.randbytes(dice.randrange(5))
        data = data[:at] + new + data[end:]
    return data
