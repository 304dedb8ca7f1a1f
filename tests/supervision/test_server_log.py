"""A server's stderr in the log: whole lines, bounded, and never a part of a secret."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing

from mcpd.privacy.redact import MASK, Redactor
from mcpd.supervision.server_log import FILE_QUOTA, MAX_LINE, ServerLog

SECRET = "kanarie-0123456789-abcdefghijklmn"


@pytest.fixture
def server_log(tmp_path: Path) -> ServerLog:
    redactor = Redactor()
    redactor.add([SECRET, "päöüß€" * 4])
    return ServerLog(tmp_path / "logs" / "a.log", redactor)


def shown(server_log: ServerLog) -> str:
    """Everything that was kept, in memory and in the file."""
    file = server_log.path.read_text() if server_log.path.exists() else ""
    return "\n".join((*server_log.tail(1000), *server_log.last_lines(), file))


@pytest.mark.parametrize("kept", range(1, len(SECRET) + 1))
@pytest.mark.parametrize("ends", [True, False])
def test_secret_across_the_cut_of_a_long_line_is_masked(kept: int, ends: bool, server_log: ServerLog) -> None:
    """However much of it is before the cut, and whether or not the line is ten times as long."""
    line = b"." * (MAX_LINE - kept) + SECRET.encode() + b"." * (1 if ends else 10 * MAX_LINE)
    for start in range(0, len(line), MAX_LINE):
        server_log.feed(line[start : start + MAX_LINE])
    server_log.feed(b"\nnext\n")
    assert SECRET[:1] not in shown(server_log).replace("next", "")
    assert server_log.tail(2)[0].endswith("." + MASK)
    assert server_log.tail(1)[0].endswith(" next")


@pytest.mark.parametrize("cut", [4, 10, len(SECRET) - 1])
def test_secret_that_has_arrived_in_part_is_masked(cut: int, server_log: ServerLog) -> None:
    server_log.feed(f"a token: {SECRET[:cut]}".encode())
    assert server_log.last_lines() == (f"a token: {MASK}",)
    server_log.feed(SECRET[cut:].encode() + b"\n")
    assert server_log.last_lines() == (f"a token: {MASK}",)
    assert SECRET[:4] not in shown(server_log)


def test_cut_inside_a_character_hides_no_secret(server_log: ServerLog) -> None:
    server_log.feed("a token: päöüß".encode()[:-1])
    assert server_log.last_lines() == (f"a token: {MASK}",)


def test_secret_with_escape_sequences_inside_is_masked(server_log: ServerLog) -> None:
    server_log.feed(f"\x1b[31m{SECRET[:9]}\x1b[0m{SECRET[9:]}\n".encode())
    assert server_log.last_lines() == (MASK,)


def test_file_is_replaced_when_it_is_full_and_not_before(server_log: ServerLog) -> None:
    older = server_log.path.with_suffix(".log.1")
    for text in b"a", b"b":
        server_log.feed(text + b"\n")
    assert not older.exists()
    line = b"c" * (MAX_LINE // 2) + b"\n"
    for _ in range(FILE_QUOTA // len(line)):
        server_log.feed(line)
    server_log.feed(line)
    server_log.feed(b"d\n")
    assert older.stat().st_size <= FILE_QUOTA
    assert " a\n" in older.read_text()
    assert server_log.path.read_text().endswith(" d\n")


async def test_lines_after_a_position_wait_for_the_next_one(server_log: ServerLog) -> None:
    server_log.feed(b"one\n")
    with trio.move_on_after(0.05) as waiting:
        await server_log.wait_lines_after(1)
    assert waiting.cancelled_caught
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server_log.wait_lines_after, 1)
        await trio.testing.wait_all_tasks_blocked()
        server_log.feed(b"two\n")
    lines, missed = server_log.lines_after(1, 100)
    assert ([line.rpartition(" ")[2] for line in lines], missed) == (["two"], 0)


def test_probe_and_start_of_a_server_do_not_explain_its_end(tmp_path: Path) -> None:
    """The Python SDK 1.x writes a hundred lines about the probe. What follows the handshake counts, if there
    is anything."""
    log = ServerLog(tmp_path / "a.log", Redactor())
    log.feed(
        b"loading: error: no cache\n"
        b"Failed to validate request: 31 validation errors for ClientRequest\n"
        b"PingRequest.method\n  Input should be 'ping' [input_value='server/discover']\n"
        b"    For further information visit https://errors.pydantic.dev/2.14/v/literal_error\n"
        b"InitializeRequest.params.clientInfo\n  Field required [type=missing]\n"
        b"1 validation error for Settings\ntoken\n  Field required [type=missing]\n"
    )
    settings = ("1 validation error for Settings", "token", "  Field required [type=missing]")
    assert log.failure_lines() == ("loading: error: no cache", *settings)
    log.note_ready()
    assert log.failure_lines() == ("loading: error: no cache", *settings)
    log.feed(b"disk full\nno new")
    assert log.failure_lines() == ("disk full", "no new")
