"""File changes are reported however they are made, and only once they are complete."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from mcpd.files.watcher import FileWatcher, watch_files

BOUND = 60


async def noticed(path: Path, change: Callable[[], object]) -> bool:
    with watch_files([str(path)]) as changes:
        change()
        with trio.move_on_after(BOUND):
            await changes.next_change()
            return True
    return False


def _renamed_over(path: Path) -> None:
    beside = path.with_name("beside")
    beside.write_text("new")
    beside.rename(path)


def _removed_and_created(path: Path) -> None:
    path.unlink()
    path.write_text("new")


@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.write_text("new"),
        _renamed_over,
        _removed_and_created,
        lambda path: path.unlink(),
        lambda path: path.chmod(0o600),
        lambda path: path.rename(path.with_name("old")),
    ],
    ids=["in place", "renamed over", "created again", "removed", "mode", "renamed away"],
)
async def test_a_change_of_a_file_is_noticed(tmp_path: Path, change: Callable[[Path], object]) -> None:
    """The cases are the ways in which editors, package managers and users change files."""
    path = tmp_path / "file"
    path.write_text("old")
    assert await noticed(path, lambda: change(path))


async def test_a_file_that_appears_later_is_noticed_with_its_directories(tmp_path: Path) -> None:
    """On a first run, not even ~/.config exists."""
    path = tmp_path / "a" / "b" / "file"

    with watch_files([str(path)]) as changes, trio.fail_after(BOUND):
        path.parent.parent.mkdir()
        await changes.next_change()
        path.parent.mkdir()
        path.write_text("new")
        await changes.next_change()
        path.write_text("newer")
        await changes.next_change()


async def test_symbolic_link_and_its_target_are_watched(tmp_path: Path) -> None:
    """Dotfile managers use links, and configuration management uses double links: `file → data/file`, `data →
    1`."""
    for name in ("1", "2"):
        (tmp_path / "real" / name).mkdir(parents=True)
        (tmp_path / "real" / name / "file").write_text(name)
    (tmp_path / "real" / "data").symlink_to("1")
    (tmp_path / "home").mkdir()
    path = tmp_path / "home" / "file"
    path.symlink_to("../real/data/file")
    assert await noticed(path, lambda: (tmp_path / "real" / "1" / "file").write_text("!"))

    def swap() -> None:
        (tmp_path / "real" / "next").symlink_to("2")
        (tmp_path / "real" / "next").rename(tmp_path / "real" / "data")

    with watch_files([str(path)]) as changes, trio.fail_after(BOUND):
        swap()
        await changes.next_change()
        (tmp_path / "real" / "2" / "file").write_text("!")
        await changes.next_change()


async def test_replaced_directory_is_watched_again(tmp_path: Path) -> None:
    """The path is watched, not the original inode."""
    path = tmp_path / "dir" / "file"
    path.parent.mkdir()
    path.write_text("old")
    new = tmp_path / "new"
    new.mkdir()
    (new / "file").write_text("new")
    with watch_files([str(path)]) as changes, trio.fail_after(BOUND):
        path.parent.rename(tmp_path / "old")
        new.rename(tmp_path / "dir")
        await changes.next_change()
        path.write_text("newer")
        await changes.next_change()


async def test_change_is_reported_after_the_writer_closes_the_file(tmp_path: Path) -> None:
    """A partly written file may be valid and have another meaning."""
    path = tmp_path / "file"
    path.write_text("old")
    contents: list[str] = []

    async def listen(changes: FileWatcher) -> None:
        await changes.next_change()
        contents.append(path.read_text())

    with watch_files([str(path)]) as changes, trio.fail_after(BOUND):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(listen, changes)
            with path.open("w") as file:
                for part in ("one", "two", "three"):
                    file.write(part)
                    file.flush()
                    await trio.sleep(0.5)  # longer than the usual delay
                    assert not contents
    assert contents == ["onetwothree"]


async def test_other_files_in_the_directory_neither_report_nor_delay(tmp_path: Path) -> None:
    """A home directory changes all the time."""
    path = tmp_path / "file"
    path.write_text("old")

    async def bustle() -> None:
        while True:
            (tmp_path / "other").write_text("x")
            await trio.sleep(0.02)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(bustle)
        with watch_files([str(path)]) as changes:
            with trio.move_on_after(0.6) as waiting:
                await changes.next_change()
            assert waiting.cancelled_caught
            path.write_text("new")
            with trio.fail_after(BOUND):
                await changes.next_change()
        nursery.cancel_scope.cancel()
