"""Arbitrary bytes from a server: the reader survives, responses reach their callers, and no call hangs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Start
from tests.e2e.harness import BOUND, Client, Daemon, Json, Refused, fake, wait_until
from tests.faults.bystander import nothing_left, resident, undisturbed
from tests.faults.measure import peak_memory, stalls
from tests.servers.fake import EXACT
from tests.stopwatch import stopwatch, within

MIB = 1 << 20
ERAS = {
    "modern": ("--era", "modern"),
    "legacy": ("--era", "legacy"),
    "batching": ("--era", "legacy", "--versions", "2025-03-26"),
}


def detail(client: Client, server: str) -> Json:
    return dict(client.request("mcpd/server", server=server))


def counts(client: Client, server: str) -> Json:
    """Return the counters of the fake server."""
    return dict(json.loads(client.call(server, "counts")["output"]))


def length_of_line(client: Client) -> int:
    """Read the next line and return its length in bytes."""
    size = 0
    while not (portion := client.socket.recv(1 << 20)).endswith(b"\n"):
        size += len(portion)
    return size + len(portion)


def _is_back(restarts: int) -> Callable[[Json], bool]:
    return lambda status: status["status"] == "connected" and status["restarts"] == restarts


def many(client: Client, server: str, tool: str, arguments: list[Json], window: int = 100) -> list[Any]:
    """Return the results of all calls, `window` of them in flight."""
    results: list[Any] = []
    for first in range(0, len(arguments), window):
        keys = [
            client.send("mcpd/call", server=server, tool=tool, arguments=each)
            for each in arguments[first : first + window]
        ]
        results += [client.answer(key) for key in keys]
    return results


def start_pair(start: Start, *flags: str, **definition: Any) -> Daemon:
    """Start a server for the fault, and one that must not be affected."""
    daemon = start({"odd": fake(*flags, **definition), "calm": fake()})
    daemon.wait_connected("odd", "calm")
    daemon.client().call("calm", "echo")
    return daemon


def test_ten_thousand_lines_of_junk_disturb_none_of_a_thousand_calls(start: Start) -> None:
    """Banners, blank lines, CRLF, BOM, NUL and binary are skipped and counted; one sample is shown."""
    daemon = start_pair(
        start, "--at", "start", "junk", '{"lines": 100}', "--at", "call", "junk", '{"lines": 10}'
    )
    before = daemon.status("odd")
    with daemon.client() as client, nothing_left(daemon), undisturbed(daemon, "calm"):
        results = many(client, "odd", "echo", [{"n": n} for n in range(1000)])
    after = daemon.status("odd")
    received = detail(daemon.client(), "odd")

    assert [json.loads(result["output"]) for result in results] == [{"n": n} for n in range(1000)]
    assert (after["pid"], after["restarts"], after["status"]) == (before["pid"], 0, "connected")
    assert received["junk_lines"] > 8000  # the other lines were blank
    assert received["junk_sample"]
    assert any("were not JSON-RPC" in warning for warning in after["warnings"])


@pytest.mark.parametrize("depth", [1_500, 1_000_000])
def test_deeply_nested_response_is_an_error_for_its_caller_only(start: Start, depth: int) -> None:
    """The error is immediate, not at the timeout; the frame is not validated."""
    daemon = start_pair(start)
    with daemon.client() as client, undisturbed(daemon, "calm"), stopwatch() as watch:
        for n in range(5):
            watch.restart()
            with pytest.raises(Refused, match="nested too deeply") as refused:
                client.call("odd", "deep", {"depth": depth})
            assert within(watch.seconds, 2)
            assert refused.value.code == "protocol"
            assert refused.value.body["data"]["server"] == "odd"
            assert client.call("odd", "echo", {"n": n})["output"] == f'{{"n": {n}}}'
            client.call("odd", "late", {"seconds": 0.02})

    assert daemon.status("odd")["restarts"] == 0


def test_deeply_nested_arguments_are_not_sent(start: Start) -> None:
    """Deeply nested arguments of a client are refused, and its connection stays open."""
    daemon = start_pair(start)
    client = daemon.client()
    for depth in (1_500, 100_000):
        nested = b"[" * depth + b"]" * depth
        client.send_raw(
            b'{"jsonrpc":"2.0","id":"deep","method":"mcpd/call","params":{"server":"odd","tool":"echo",'
            b'"arguments":{"a":' + nested + b"}}}"
        )
        answer = json.loads(client.read_line())
        assert answer["error"]["code"] in (-32700, -32602)
    assert client.call("odd", "echo")["success"]


def test_a_frame_of_the_limit_passes_and_a_larger_one_fails_only_its_call(start: Start) -> None:
    """32 MiB pass; 33 MiB are an error for their caller; a line without an end closes the connection. Memory
    is freed."""
    daemon = start_pair(start, restart={"base": 0.01, "cap": 0.05, "intensity": 100})
    with daemon.client() as client, undisturbed(daemon, "calm"):
        client.call("odd", "big", {"mb": 1}, raw=True)
        base = resident(daemon.pid)
        with peak_memory(daemon.pid) as peak, stalls(daemon) as stalled:
            size = 32 * MIB - 1000
            client.send("mcpd/call", server="odd", tool="big", arguments={"bytes": size}, raw=True)
            assert length_of_line(client) > size  # without parsing, which would delay the measurement
            other = client.send("mcpd/call", server="odd", tool="late", arguments={"seconds": 1})
            with pytest.raises(Refused, match=r"more than 33554432 bytes \(raise `maxFrame`") as refused:
                client.call("odd", "big", {"mb": 33})
            assert (refused.value.code, refused.value.body["data"]["may_have_run"]) == ("protocol", True)
            assert client.answer(other)["success"]
            assert daemon.status("odd")["restarts"] == 0
            with pytest.raises(Refused, match="line of more than 134217728 bytes") as refused:
                client.call("odd", "endless", {"mb": 140})
            assert refused.value.code == "link_lost"
            daemon.wait_status("odd", _is_back(1))
        assert peak.bytes <= base + 3 * 32 * MIB
        assert within(stalled.longest, 0.15)
        freed = time.monotonic() + BOUND
        while (left := resident(daemon.pid) - base) > 8 * MIB and time.monotonic() < freed:
            client.call("odd", "echo")
        assert left <= 8 * MIB


DELIVERED = {
    "surrogate": "lone \ufffd half",
    "utf8": "cut \ufffd\ufffd(\ufffd\ufffd\ufffd here",
    "u2028": "a\u2028b\u2029c",
    "crlf": "crlf",
    "bom": "bom",
    "twice": "twice",
    "unversioned": "unversioned",
    "pieces": "pieces",
    "stringid": "stringid",
    "batch": "batch",
    "nul": "nul",
}


def test_every_oddly_written_answer_is_delivered(start: Start) -> None:
    """The next frame is read normally."""
    daemon = start({"odd": fake()})
    client = daemon.client()
    daemon.wait_connected("odd")
    client.call("odd", "echo")
    for kind, text in DELIVERED.items():
        assert client.call("odd", "odd", {"kind": kind})["output"] == text
        raw = client.call("odd", "odd", {"kind": kind}, raw=True)
        assert raw["content"][0]["text"].replace("\ud800", "\ufffd") == text
        assert client.call("odd", "echo", {"next": kind})["output"] == f'{{"next": "{kind}"}}'
    assert daemon.status("odd")["restarts"] == 0


def test_batch_of_a_server_is_accepted_in_each_revision(start: Start) -> None:
    """Only revision 2025-03-26 defines batches."""
    daemon = start({"odd": fake(*ERAS["batching"]), "later": fake("--era", "legacy")})
    client = daemon.client()
    daemon.wait_connected("odd", "later")

    assert client.call("odd", "odd", {"kind": "batch"})["output"] == "batch"
    assert client.call("later", "odd", {"kind": "batch"})["output"] == "batch"
    assert client.call("later", "echo")["success"]


def test_nested_batches_are_skipped(start: Start) -> None:
    """A thousand nested arrays around one message made the reader exceed the recursion limit."""
    daemon = start_pair(start, *ERAS["batching"])
    client = daemon.client()
    nested = "[" * 400 + '{"jsonrpc":"2.0","method":"ping"}' + "]" * 400 + "\n"
    for _ in range(3):
        client.call("odd", "raw", {"text": nested})

    assert daemon.status("odd")["restarts"] == 0
    assert detail(client, "odd")["junk_lines"] == 3


def test_missing_reply_is_an_error_at_the_timeout(start: Start) -> None:
    """The server receives a cancellation; late responses are dropped and counted."""
    daemon = start_pair(start)
    with (
        daemon.client() as client,
        nothing_left(daemon),
        undisturbed(daemon, "calm"),
        stopwatch() as watch,
    ):
        client.call("odd", "echo")
        for tool in ("drop", "too_late"):
            watch.restart()
            began = time.monotonic()
            with pytest.raises(Refused, match=f"odd: tool '{tool}' took 0.5 s") as refused:
                client.call("odd", tool, timeout=0.5)
            assert refused.value.code == "timeout"
            assert time.monotonic() - began > 0.49
            assert within(watch.seconds, 1)
        seen = counts(client, "odd")

    assert seen["seen"]["notifications/cancelled"] == 2
    assert detail(client=daemon.client(), server="odd")["late_replies"] == 1
    assert daemon.status("odd")["restarts"] == 0


def test_cancellation_that_crosses_the_response_is_harmless(start: Start) -> None:
    """A reply after the cancellation, a cancellation after the reply, and one of an unknown request."""
    daemon = start_pair(start)
    with daemon.client() as client, nothing_left(daemon), undisturbed(daemon, "calm"):
        client.call("odd", "echo")
        keys = [client.send("mcpd/call", server="odd", tool="too_late", arguments={}) for _ in range(20)]
        wait_until(lambda: daemon.status("odd")["in_flight"] == 20, lambda: "not all were sent")
        for key in keys:
            client.notify("notifications/cancelled", requestId=key)
        done = client.send("mcpd/call", server="odd", tool="echo", arguments={})
        client.answer(done)
        for odd in (done, 10**6, "nobody", None, {"a": 1}):
            client.notify("notifications/cancelled", requestId=odd)
        client.notify("notifications/cancelled")
        seen = counts(client, "odd")  # sent after the cancellations, and answered after the late replies

    assert seen["seen"]["notifications/cancelled"] == 20
    assert detail(daemon.client(), "odd")["late_replies"] == 20


def test_a_flood_on_stderr_is_drained_and_kept_within_its_quota(start: Start) -> None:
    """100 MiB of stderr without a newline neither block the server nor fill the disk."""
    daemon = start_pair(start)
    with daemon.client() as client, undisturbed(daemon, "calm"):
        client.call("odd", "stderr", {"lines": 2000})
        base = resident(daemon.pid)
        client.call("odd", "stderr", {"mb": 100, "binary": True})
        client.call("odd", "stderr", {"lines": 3, "text": "after the flood"})
        wait_until(lambda: last_words(client).endswith("after the flood 2"), lambda: last_words(client))
        wait_until(lambda: resident(daemon.pid) - base < 10 * MIB, lambda: "its memory has grown")
    file = Path(detail(daemon.client(), "odd")["log_file"])

    assert sum(each.stat().st_size for each in file.parent.glob("odd.log*")) <= 2 * MIB + 4096
    assert daemon.status("odd")["restarts"] == 0


def last_words(client: Client) -> str:
    lines: list[str] = client.request("mcpd/logs", server="odd", lines=1)["lines"]
    return lines[-1] if lines else ""


@pytest.mark.parametrize("era", ["modern", "legacy"])
def test_no_byte_of_a_result_changes_on_the_way(start: Start, era: str) -> None:
    """Big integers, float text, key order, duplicate keys, escapes and spacing; raw and attached."""
    daemon = start({"odd": fake(*ERAS[era])})
    daemon.wait_connected("odd")
    expected = EXACT if era == "legacy" else '{"resultType":"complete",' + EXACT[1:]
    client = daemon.client()
    key = client.send("mcpd/call", server="odd", tool="exact", arguments={}, raw=True)
    assert client.read_line() == f'{{"jsonrpc":"2.0","id":{key},"result":{expected}}}'.encode()

    attached = daemon.client()
    attached.request("mcpd/attach", server="odd")
    attached.send_raw(b'{"jsonrpc":"2.0","id":"x\\u0031","method":"tools/call","params":{"name":"exact"}}')
    # A client without a revision counts as legacy and gets no marker of a complete result.
    assert attached.read_line() == f'{{"jsonrpc":"2.0","id":"x\\u0031","result":{EXACT}}}'.encode()

    normalised = daemon.client()
    normalised.send("mcpd/call", server="odd", tool="exact", arguments={})
    data = EXACT.partition('"structuredContent":')[2].partition(",\n")[0].partition("},")[0] + "}"
    assert f'"data":{data}'.encode() in normalised.read_line()


def test_no_byte_of_the_arguments_changes_on_the_way(start: Start) -> None:
    """The tool receives exactly what the client wrote."""
    daemon = start({"odd": fake(debug=True)}, "--debug")
    daemon.wait_connected("odd")
    arguments = (
        '{"big":1180591620717411303424,"b":1.10,"a":-0.0,"twice":1,"twice":2,"e":1E+400,"t":"\\u0041\\/"}'
    )
    client = daemon.client()
    client.send_raw(
        f'{{"jsonrpc":"2.0","id":1,"method":"mcpd/call","params":{{"server":"odd","tool":"echo","arguments":{arguments}}}}}'.encode()
    )
    client.read_line()
    client.request("mcpd/attach", server="odd")
    client.send_raw(
        f'{{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{{"name":"echo","arguments":{arguments}}}}}'.encode()
    )
    client.read_line()
    daemon.stop()

    sent = json.dumps(f'"arguments":{arguments}')[1:-1]
    assert daemon.log.count(sent) == 2
