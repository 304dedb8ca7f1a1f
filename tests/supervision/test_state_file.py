"""The state file: every change is saved, even immediately before shutdown."""

from __future__ import annotations

import os
from pathlib import Path
from unittest.mock import Mock

import pytest
import trio
import trio.testing

from mcpd.state.cached_lists import fingerprint
from mcpd.state.state_file import AppliedSet, StateFile, unsaved_warning
from tests.processes import wait_until


async def saving(store: StateFile, change: object = None) -> None:
    """Run the store, make the change while it runs, and cancel the store immediately."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.run)
        await trio.testing.wait_all_tasks_blocked()
        if callable(change):
            change()
        nursery.cancel_scope.cancel()


async def test_a_change_made_just_before_the_end_is_saved(tmp_path: Path) -> None:
    """The cancellation may precede the saving task's next step."""
    store = StateFile(tmp_path, tmp_path)
    await saving(store, lambda: store.set_toggle("it", False))
    assert StateFile(tmp_path, tmp_path).is_enabled("it") is False


async def test_a_change_is_saved_when_the_save_itself_is_cancelled(tmp_path: Path) -> None:
    """The saving task has taken the change and is cancelled before its thread starts."""
    store = StateFile(tmp_path, tmp_path)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.run)
        await trio.testing.wait_all_tasks_blocked()

        @nursery.start_soon
        async def change_then_cancel() -> None:
            store.set_toggle("it", False)
            await trio.lowlevel.checkpoint()  # the saving task wakes up and starts to save
            nursery.cancel_scope.cancel()

    assert StateFile(tmp_path, tmp_path).is_enabled("it") is False


async def test_state_round_trips(tmp_path: Path) -> None:
    """The file is private and keeps toggles, eras and the applied set, but no forgotten servers."""
    store = StateFile(tmp_path, tmp_path)
    applied = AppliedSet(servers={"it": {"command": "x", "args": ["\u2028", "n\u00e4"]}}, config_digest="d")

    def change() -> None:
        store.set_toggle("it", False)
        store.set_toggle("gone", True)
        store.clear_toggle("gone")
        store.set_era(fingerprint(("it",)), "legacy")
        store.set_applied(applied)

    (tmp_path / "state.json").touch(0o644)
    await saving(store, change)
    again = StateFile(tmp_path, tmp_path)
    assert again.state == store.state
    assert again.state.applied == applied
    assert again.is_enabled("gone") is None
    assert (tmp_path / "state.json").stat().st_mode & 0o777 == 0o600


async def test_daemons_that_share_the_file_keep_each_others_changes(tmp_path: Path) -> None:
    """Each daemon writes only what it has changed since it has read the file."""
    first = StateFile(tmp_path, tmp_path)

    def prepare() -> None:
        first.set_toggle("cleared by both", False)
        first.set_toggle("cleared by the second", False)

    await saving(first, prepare)
    second = StateFile(tmp_path, tmp_path)

    def change() -> None:
        for name in ("cleared by both", "cleared by the second"):
            second.clear_toggle(name)
        second.set_toggle("of the second", False)
        second.set_era("fingerprint", "legacy")

    await saving(second, change)

    def change_too() -> None:
        first.clear_toggle("cleared by both")
        first.set_toggle("of the first", False)

    await saving(first, change_too)
    last = StateFile(tmp_path, tmp_path).state
    assert dict(last.toggles) == {"of the first": False, "of the second": False}
    assert dict(last.eras) == {"fingerprint": "legacy"}


async def test_another_daemon_in_the_same_directory_is_named(tmp_path: Path) -> None:
    """The home directory may be on a file server."""
    mine, other = StateFile(tmp_path, tmp_path), StateFile(tmp_path, tmp_path)
    mine.claim()
    other.claim()
    assert mine.warnings == ()
    (warning,) = other.warnings
    assert f"another mcpd (process {os.getpid()} on {os.uname().nodename}) uses {tmp_path}, too" in warning
    assert warning.endswith("; set XDG_STATE_HOME for one of them")


async def test_a_file_that_another_daemon_has_damaged_is_replaced(tmp_path: Path) -> None:
    store = StateFile(tmp_path, tmp_path)
    await saving(store, lambda: store.set_toggle("one", False))
    (tmp_path / "state.json").write_bytes(b"\xff{")
    await saving(store, lambda: store.set_toggle("two", False))
    assert dict(StateFile(tmp_path, tmp_path).state.toggles) == {"one": False, "two": False}


async def test_cached_lists_are_kept_and_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The most recently used definitions are kept, including a change just before shutdown."""
    monkeypatch.setattr("mcpd.state.cached_lists._MAX_FILES", 3)
    store = StateFile(tmp_path, tmp_path)

    def change() -> None:
        for n in range(5):
            store.lists.keep(str(n), b"old")
            store.lists.keep(str(n), b"new")

    await saving(store, change)
    again = StateFile(tmp_path, tmp_path)
    assert [again.lists.read(str(n)) for n in range(2, 5)] == [b"new"] * 3
    assert len(list((tmp_path / "lists").iterdir())) == 3


async def test_a_change_is_answered_when_it_is_saved_or_cannot_be_saved(tmp_path: Path) -> None:
    """The problem is also a warning, until the changes are saved."""
    state = tmp_path / "state"
    state.write_text("a file where the directory should be")
    store = StateFile(state, tmp_path)
    problem = ""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.run)
        await trio.testing.wait_all_tasks_blocked()
        for enabled in (False, True):
            store.set_toggle("it", enabled)
            problem = await store.wait_saved()
            assert problem.startswith(f"cannot write {state}/state.json: ")
        assert list(store.warnings) == [unsaved_warning(problem)]
        state.unlink()
        store.set_toggle("it", False)
        assert await store.wait_saved() == ""
        assert not store.warnings
        assert StateFile(state, tmp_path).is_enabled("it") is False
        nursery.cancel_scope.cancel()


async def test_a_disk_that_does_not_answer_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    store = StateFile(tmp_path, tmp_path)

    async def hang(*_: object) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr(store._thread, "run", hang)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.run)
        await trio.testing.wait_all_tasks_blocked()
        store.set_toggle("it", False)
        assert "its disk has not answered within 5 s" in await store.wait_saved()
        assert store.warnings
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("broken", [b"garbage", None], ids=["invalid", "a directory"])
def test_a_file_that_cannot_be_read_is_kept_and_mentioned(tmp_path: Path, broken: bytes | None) -> None:
    """Until its copy is deleted. The next change is saved."""
    path = tmp_path / "state.json"
    path.write_bytes(broken) if broken else path.mkdir()
    store = StateFile(tmp_path, tmp_path)
    (kept,) = tmp_path.iterdir()
    assert kept.name.startswith("state.json.unreadable-")
    (warning,) = store.warnings
    assert warning == store.read_problem
    assert "so mcpd started without what was enabled, disabled or applied; disable " in warning
    assert warning.endswith(f"then delete {kept}")
    trio.run(saving, store, lambda: store.set_toggle("it", False))
    assert StateFile(tmp_path, tmp_path).is_enabled("it") is False
    assert store.warnings == (warning,)
    kept.unlink() if broken else kept.rmdir()
    assert not store.warnings


async def test_directory_without_write_permission_is_noticed_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not only when a change is lost. The test may run as root, who may write everywhere."""
    monkeypatch.setattr("mcpd.state.state_file._RETRY_INTERVAL", 0.005)
    monkeypatch.setattr("mcpd.state.state_file.os.access", Mock(return_value=False))
    denied = Mock(side_effect=PermissionError(13, "Permission denied"))
    monkeypatch.setattr("mcpd.state.state_file.write_atomically", denied)
    store = StateFile(tmp_path, tmp_path)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.run)
        with trio.fail_after(30):
            while not store.warnings:  # noqa: ASYNC110
                await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
    assert "Permission denied" in store.warnings[0]


def test_downgrade_keeps_what_was_disabled(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A newer version may have written members that this one does not know."""
    (tmp_path / "state.json").write_text('{"toggles": {"it": false}, "novelty": {"x": 1}}')
    assert StateFile(tmp_path, tmp_path).is_enabled("it") is False
    assert "is from another version; ignored: novelty" in caplog.text


async def test_unsaved_state_is_written_when_the_disk_has_space(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Saving is retried without another change, and logged once."""
    monkeypatch.setattr("mcpd.state.state_file._RETRY_INTERVAL", 0.005)
    state = tmp_path / "state"
    state.write_text("a file where the directory should be")
    store = StateFile(state, state)
    store.set_toggle("it", False)
    store.lists.keep("its", b"[]")
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.run)
            # one for each failed write
            while len(caplog.records) < 2:  # noqa: ASYNC110 - a log record has no event to wait for
                await trio.sleep(0.01)
            await trio.sleep(0.2)
            assert len(caplog.records) == 2
            state.unlink()
            while store.problem or StateFile(state, state).lists.read("its") != b"[]":  # noqa: ASYNC110
                await trio.sleep(0.01)
            assert StateFile(state, state).is_enabled("it") is False
            nursery.cancel_scope.cancel()


async def test_changes_in_quick_succession_are_saved_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mock_clock: trio.testing.MockClock
) -> None:
    """Otherwise each of 200 servers that connect at the same time would write the file once more."""
    writes: list[Path] = []

    def write(path: Path, data: bytes, mode: int) -> None:
        writes.append(path)

    monkeypatch.setattr("mcpd.state.state_file.write_atomically", write)
    store = StateFile(tmp_path, tmp_path)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.run)
        for n in range(50):
            store.set_toggle(str(n), False)
            await trio.testing.wait_all_tasks_blocked(0.02)
        assert len(writes) == 1
        mock_clock.jump(1)
        await trio.to_thread.run_sync(wait_until, lambda: len(writes) == 2)
        nursery.cancel_scope.cancel()
