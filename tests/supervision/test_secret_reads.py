"""A disk that never answers affects only the servers that need a secret from it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping

import pytest
import trio

from mcpd.model.server_spec import SecretReference, UnavailableSecret
from mcpd.supervision import secrets
from mcpd.supervision.secrets import SecretReads

BOUND = 60.0


class Disk:
    """Files whose name begins with `hung` do not answer before `answer` is called."""

    def __init__(self) -> None:
        self._answered = threading.Event()
        self._lock = threading.Lock()
        self.reads: list[str] = []
        self.most_at_once = 0
        self._now = 0

    def fetch(self, reference: SecretReference, environ: Mapping[str, str]) -> str | UnavailableSecret:
        name = reference.arguments[0]
        with self._lock:
            self.reads.append(name)
            self._now += 1
            self.most_at_once = max(self.most_at_once, self._now)
        if name.startswith("hung"):
            self._answered.wait(BOUND)
        with self._lock:
            self._now -= 1
        return f"value of {name}"

    def answer(self) -> None:
        self._answered.set()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    disk = Disk()
    monkeypatch.setattr(secrets, "fetch_secret", disk.fetch)
    monkeypatch.setattr(secrets, "SECRET_TIMEOUT", 0.2)
    yield disk
    disk.answer()


def file(name: str) -> SecretReference:
    return SecretReference("file", (name,))


async def test_hung_files_do_not_delay_others(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are: each one has a thread, and none of trio's usual ones."""
    reads, found = SecretReads(), {}

    async def fetch(name: str) -> None:
        found[name] = await reads.fetch(file(name), {})

    async with trio.open_nursery() as nursery:
        for number in range(60):
            nursery.start_soon(fetch, f"hung-{number}")
    assert all(isinstance(each, UnavailableSecret) for each in found.values())
    with trio.fail_after(BOUND):
        while len(disk.reads) < 60:  # a thread that did not start in time has read nothing
            async with trio.open_nursery() as nursery:
                for number in range(60):
                    nursery.start_soon(fetch, f"hung-{number}")
            await trio.sleep(0.01)
    assert sorted(disk.reads) == sorted(f"hung-{number}" for number in range(60))
    monkeypatch.setattr(secrets, "SECRET_TIMEOUT", BOUND)
    assert await reads.fetch(file("fine"), {}) == "value of fine"
    limiter = trio.to_thread.current_default_thread_limiter()
    assert limiter.borrowed_tokens == 0


async def test_hung_file_is_read_once_and_works_again_when_the_disk_answers(disk: Disk) -> None:
    reads = SecretReads()
    with trio.fail_after(BOUND):
        while not disk.reads:  # a thread that did not start in time has read nothing
            first = await reads.fetch(file("hung"), {})
            assert isinstance(first, UnavailableSecret)
            assert "reading the file hung did not finish within 0.2 s" in first.message
    for _ in range(3):
        assert isinstance(await reads.fetch(file("hung"), {}), UnavailableSecret)
    assert disk.reads == ["hung"]
    disk.answer()
    with trio.fail_after(BOUND):
        while isinstance(await reads.fetch(file("hung"), {}), UnavailableSecret):  # noqa: ASYNC110
            await trio.sleep(0.01)  # the thread ends at its own pace


async def test_all_secrets_of_the_store_are_one_file(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are read one after another, and if one read hangs there is no other."""
    reads = SecretReads()

    async def fetch(name: str) -> None:
        await reads.fetch(SecretReference("secret", (name,)), {"XDG_CONFIG_HOME": "/somewhere"})

    with monkeypatch.context() as patch:
        patch.setattr(secrets, "SECRET_TIMEOUT", BOUND)
        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(fetch, f"S_{number}")
    assert len(disk.reads) == 20
    assert disk.most_at_once == 1
    with trio.fail_after(BOUND):
        while len(disk.reads) == 20:  # a thread that did not start in time has read nothing
            async with trio.open_nursery() as nursery:
                for number in range(20):
                    nursery.start_soon(fetch, f"hung_{number}")
            await trio.sleep(0.01)
    assert len(disk.reads) == 21
