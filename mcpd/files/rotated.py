"""A file of lines that is appended to and rotated: PATH, and PATH.1 with the older lines."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from mcpd.files.regular import open_regular_file


def append_lines(path: Path, data: bytes, max_size: int, kept: int = 1) -> None:
    """Append complete lines, rotating the file if it would exceed `max_size`. Blocks; raises OSError.

    `kept` older files remain.

    If the file ends in a truncated line, that line is terminated first.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    with suppress(FileNotFoundError):
        size = os.stat(path, follow_symlinks=False).st_size
        if size and size + len(data) > max_size:
            for number in range(kept - 1, 0, -1):
                with suppress(FileNotFoundError):
                    os.replace(older(path, number), older(path, number + 1))
            os.replace(path, older(path))
    handle = os.open(path, flags, 0o600)
    try:
        size = os.fstat(handle).st_size
        if size and os.pread(handle, 1, size - 1) != b"\n":
            data = b"\n" + data
        view = memoryview(data)
        while view:
            view = view[os.write(handle, view) :]
    finally:
        os.close(handle)


def older(path: Path, number: int = 1) -> Path:
    """Return the file with the lines before those of `path`, or of the older file before this one."""
    return path.with_name(f"{path.name}.{number}")


def last_lines(path: Path, size: int) -> list[bytes]:
    """Return the complete lines in the last `size` bytes of a file. Blocks; raises OSError.

    A line that a crash has cut off at the end is left out.
    """
    with open_regular_file(path) as (file, found):
        start = max(0, found.st_size - size)
        file.seek(start)
        data = file.read(size)
    *lines, _ = data.split(b"\n")
    return lines[1:] if start else lines  # the first starts before the part that was read
