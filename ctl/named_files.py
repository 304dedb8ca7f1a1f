"""Reading files that the arguments of a command name, which may be devices, pipes, or endless."""

from __future__ import annotations

import errno
import sys
from io import FileIO
from pathlib import Path

from mcpd.support.regular_files import UnusableFile, read_regular_file, read_up_to


def advice(error: OSError) -> str:
    """Return what the user can do about a file that cannot be read."""
    if error.errno == errno.EFBIG:
        return "is this the right file? A larger one must be split"
    if isinstance(error, UnusableFile):
        return "name a regular file; save what a device or a pipe contains in one first"
    if isinstance(error, FileNotFoundError):
        return "check the path"
    return "check the permissions of the file and its directories"


def read_named_file(name: str, max_size: int) -> bytes:
    """Return the content of a file, or of stdin for `-`. Raises OSError, UnusableFile if it is too large.

    A FIFO or a device is refused without waiting for it. A descriptor of this process, as from a shell's
    `<(command)`, is read to its end.
    """
    if name == "-":
        data = sys.stdin.buffer.read(max_size + 1)
        if len(data) > max_size:
            raise UnusableFile(errno.EFBIG, f"it has more than {max_size} bytes", "stdin")
        return data
    if name == "/dev/stdin" or name.startswith(("/dev/fd/", "/proc/self/fd/")):
        with FileIO(name) as file:
            return read_up_to(file, max_size, name)
    return read_regular_file(Path(name).expanduser(), max_size)
