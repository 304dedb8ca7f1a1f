"""Run `mcpd` and count the Python calls that it makes, or the bytecode instructions that it executes.

    python -m benchmarks.counted_daemon calls|instructions|native FILE mcpd's arguments…

It counts between SIGUSR1 and SIGUSR2. It writes FILE when it has received SIGUSR1, and after SIGUSR2 with a
line for each function: its number and its name. Only the code of mcpd and of the libraries under it counts
that starts to run, or continues after an `await`, in between. For `native`, valgrind runs the daemon and
counts the instructions of the processor when `vgdb` tells it to; it writes the number to FILE.1 and so on.
"""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import TYPE_CHECKING

from mcpd.main import main

if TYPE_CHECKING:
    from _typeshed import TraceFunction

_counts: Counter[CodeType] = Counter()


def _profile(frame: FrameType, event: str, argument: object) -> None:
    if event == "call":
        _counts[frame.f_code] += 1


def _trace(frame: FrameType, event: str, argument: object) -> TraceFunction:
    frame.f_trace_opcodes, frame.f_trace_lines = True, False
    if event == "opcode":
        _counts[frame.f_code] += 1
    return _trace


def _name(code: CodeType) -> str:
    path = Path(code.co_filename)
    return f"{path.parent.name}/{path.name}:{code.co_firstlineno} {code.co_qualname}"


def run(what: str, file: Path, arguments: list[str]) -> None:
    """Run the daemon."""

    def write() -> None:
        partial = file.with_suffix(".new")
        counts = _counts.copy()
        partial.write_text("".join(f"{n} {_name(code)}\n" for code, n in counts.most_common()))
        partial.rename(file)

    def start(number: int, frame: FrameType | None) -> None:
        write()
        _counts.clear()
        if what == "calls":
            sys.setprofile(_profile)
        else:
            sys.settrace(_trace)

    def stop(number: int, frame: FrameType | None) -> None:
        sys.setprofile(None)
        sys.settrace(None)
        write()

    signal.signal(signal.SIGUSR1, start)
    signal.signal(signal.SIGUSR2, stop)
    main(arguments)


def run_in_valgrind(file: Path, arguments: list[str]) -> None:
    """Replace this process by valgrind with the daemon."""
    options = [
        "--tool=callgrind",
        "--instr-atstart=no",
        f"--callgrind-out-file={file}",
        "--log-file=/dev/null",
    ]
    os.execvp("valgrind", ["valgrind", *options, sys.executable, "-m", "mcpd", *arguments])


if __name__ == "__main__":
    if sys.argv[1] == "native":
        run_in_valgrind(Path(sys.argv[2]), sys.argv[3:])
    run(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
