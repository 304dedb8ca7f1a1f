"""Atomic replacement of files: write a temporary file, fsync, rename."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from pathlib import Path

_STALE_AFTER = 60.0
"""Seconds. An older temporary file was left behind by a writer that was killed."""


def write_atomically(path: Path, data: bytes, mode: int | None = None) -> None:
    """Replace the content of `path`, or of the file it links to. Blocks on the disk. Raises OSError.

    `mode` None keeps the current mode; a new file gets 0600. The owner is kept, or PermissionError is
    raised. Missing directories are created with mode 0700.
    """
    real = Path(os.path.realpath(path))
    _make_directory(real.parent)
    there = real.stat() if real.exists() else None
    if mode is None:
        mode = there.st_mode & 0o7777 if there is not None else 0o600
    handle, temporary = tempfile.mkstemp(dir=real.parent, prefix=f".{real.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            if there is not None:
                _keep_owner(file.fileno(), there)
            os.fchmod(file.fileno(), mode)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, real)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    directory = os.open(real.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _keep_owner(handle: int, there: os.stat_result) -> None:
    """When root replaces a user's file, the user must still be able to write it."""
    ours = os.fstat(handle)
    if ours.st_uid != there.st_uid:
        os.fchown(handle, there.st_uid, there.st_gid)
    elif ours.st_gid != there.st_gid:
        with contextlib.suppress(PermissionError):  # a group that we are not in
            os.fchown(handle, -1, there.st_gid)


def _make_directory(directory: Path) -> None:
    missing = [parent for parent in (directory, *directory.parents) if not parent.exists()]
    for parent in reversed(missing):
        parent.mkdir(mode=0o700, exist_ok=True)


def remove_stale_temporaries(path: Path) -> None:
    """Remove temporary files of writers of `path` that were killed. Never raises."""
    with contextlib.suppress(OSError):
        for found in path.parent.glob(f".{path.name}.*"):
            with contextlib.suppress(OSError):
                if found.lstat().st_mtime < time.time() - _STALE_AFTER:
                    found.unlink()
