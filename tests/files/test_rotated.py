"""A file of lines that is appended to, rotated, and read from its end."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcpd.files.rotated import append_lines, last_lines, older


def test_lines_are_bounded_on_disk(tmp_path: Path) -> None:
    """There are never more than two files."""
    path = tmp_path / "lines"
    for number in range(100):
        append_lines(path, b"x" * 99 + b"\n", max_size=1000)
        assert path.stat().st_size <= 1000, number
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 2000
    assert sorted(tmp_path.iterdir()) == [path, older(path)]
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("content", "size", "lines"),
    [
        (b"", 100, []),
        (b"one\ntwo\n", 100, [b"one", b"two"]),
        (b"one\ntwo\ncut off", 100, [b"one", b"two"]),
        (b"one\ntwo\nthree\n", 10, [b"three"]),
        (b"\xff\x00" * 50, 10, []),
    ],
)
def test_complete_lines_at_the_end_are_read(
    tmp_path: Path, content: bytes, size: int, lines: list[bytes]
) -> None:
    path = tmp_path / "lines"
    path.write_bytes(content)
    assert last_lines(path, size) == lines


def test_line_cut_off_by_a_crash_is_terminated(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"cut o")
    append_lines(path, b"next\n", max_size=1000)
    assert path.read_bytes() == b"cut o\nnext\n"
