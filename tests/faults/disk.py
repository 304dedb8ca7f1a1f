"""A disk of 64 KiB that a test can fill and clear."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import attrs
import pytest

_MOUNT = 'mount -t tmpfs -o size=64k,mode=700 none "$0" && echo mounted && exec cat'


@attrs.frozen
class Disk:
    """`place` is the mount point inside the namespace, `path` the path for this process."""

    place: Path
    path: Path
    enter: tuple[str, ...]
    """What a command line begins with, for a program that is to see the disk."""

    def fill(self) -> None:
        """Write until no byte is free."""
        with (self.path / "filling").open("ab", buffering=0) as file:
            for size in (4096, 1):
                with suppress(OSError):
                    while file.write(b"x" * size):
                        pass

    def make_room(self) -> None:
        (self.path / "filling").unlink()

    def files(self) -> dict[str, bytes]:
        """Return all files except the one that fills the disk."""
        return {
            str(path.relative_to(self.path)): path.read_bytes()
            for path in self.path.rglob("*")
            if path.is_file() and path.name != "filling"
        }


@contextmanager
def small_disk(place: Path) -> Iterator[Disk]:
    """Mount it in a mount namespace of its own, which disappears if this process is killed."""
    if os.geteuid() or shutil.which("unshare") is None or shutil.which("nsenter") is None:
        pytest.skip("a disk of our own needs root, and unshare and nsenter of the package util-linux")
    place.mkdir()
    keeper = subprocess.Popen(
        ["unshare", "-m", "--propagation", "private", "sh", "-c", _MOUNT, str(place)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert keeper.stdin is not None
    assert keeper.stdout is not None
    try:
        assert keeper.stdout.readline() == b"mounted\n"
        enter = ("nsenter", f"--mount=/proc/{keeper.pid}/ns/mnt", "--")
        yield Disk(place, Path(f"/proc/{keeper.pid}/root{place}"), enter)
    finally:
        keeper.stdin.close()
        keeper.wait(60)
        keeper.stdout.close()
