"""Opening a file that something else may have replaced: by a pipe, a device, a directory, a huge file."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO


class UnusableFile(OSError):
    """The file is not a regular file, or it is too large; `strerror` says which."""


@contextmanager
def open_regular_file(path: str | os.PathLike[str]) -> Iterator[tuple[FileIO, os.stat_result]]:
    """Open a file for reading, unbuffered, and return it with its status.

    Raises FileNotFoundError, UnusableFile, or another OSError. A FIFO or a device is refused without waiting
    for it. A file system that does not answer still blocks.
    """
    # Without O_NONBLOCK, opening a FIFO that nobody writes to would not return.
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        found = os.fstat(handle)
        if stat.S_ISDIR(found.st_mode):
            raise UnusableFile(errno.EISDIR, "it is a directory", os.fspath(path))
        if not stat.S_ISREG(found.st_mode):
            raise UnusableFile(errno.EINVAL, "it is not a regular file", os.fspath(path))
        with FileIO(handle, closefd=False) as file:  # refuses a directory in words of its own
            yield file, found
    finally:
        os.close(handle)


def read_regular_file(path: str | os.PathLike[str], max_size: int) -> bytes:
    """Return the content of a file of at most `max_size` bytes. Raises as `open_regular_file`."""
    with open_regular_file(path) as (file, _):
        return read_up_to(file, max_size, path)


def read_up_to(file: FileIO, max_size: int, path: str | os.PathLike[str]) -> bytes:
    """Read to the end. Raises UnusableFile if that is more than `max_size` bytes."""
    data = bytearray()
    while portion := file.read(min(max_size + 1 - len(data), 1 << 20)):
        data += portion
        if len(data) > max_size:
            raise UnusableFile(errno.EFBIG, f"it has more than {max_size} bytes", os.fspath(path))
    return bytes(data)
