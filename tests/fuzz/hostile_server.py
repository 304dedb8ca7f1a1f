"""A server on stdin and stdout that answers each request with the output of a case.

    python -m tests.fuzz.hostile_server SEED COUNTER_FILE

A call names its case. Other requests get the next number in the file, which counts over all lives.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from tests.fuzz.answers import expected, stdio_output
from tests.fuzz.generate import Json, die


def main(seed: int, counter: Path) -> None:
    signal.alarm(7200)
    for text in sys.stdin.buffer:
        try:
            request: Json = json.loads(text)
        except ValueError:
            continue
        if not isinstance(request, dict) or not isinstance(request.get("id"), int) or "method" not in request:
            continue
        number = case_of(request)
        if number is None:
            number = int(counter.read_text() or 0) + 1 if counter.exists() else 1
            counter.write_text(str(number))
            dice = die(seed, "handshake", number)
            data = expected(request) + b"\n" if dice.random() < 0.8 else stdio_output(dice, request)
        else:
            dice = die(seed, "stdio", number)
            data = stdio_output(dice, request)
        write(1, data)
        if dice.random() < 0.02:
            write(2, data[:100_000])
        if dice.random() < 0.003:
            os._exit(dice.choice((0, 1, 3)))


def case_of(request: Json) -> int | None:
    given = request.get("params") if request.get("method") == "tools/call" else None
    arguments = given.get("arguments") if isinstance(given, dict) else None
    number = arguments.get("case") if isinstance(arguments, dict) else None
    return number if isinstance(number, int) else None


def write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(fd, view) :]
    except OSError:
        os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
