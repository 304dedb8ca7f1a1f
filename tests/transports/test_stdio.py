"""Many exchanges over one channel, without a process: window, queue, deadlines, cancellation and end."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
import trio
from msgspec import Raw
from trio.testing import wait_all_tasks_blocked

from mcpd.model.errors import CallTimeout, LinkLost, McpdError, Overloaded, ProtocolViolation
from mcpd.model.server_spec import ServerSpec, Timeouts
from mcpd.protocol.upstream_session import send_request
from mcpd.transports.outgoing_request import AwaitedExchange
from mcpd.transports.stdio import PipeChannel
from mcpd.wire import limits
from tests.transports.peer import PATIENCE, Json, connected

OK: Json = {"result": {}}


async def test_in_flight_limit_queues_requests_and_the_queue_is_bounded() -> None:
    """Further requests are refused immediately, with nothing sent."""
    async with connected(max_in_flight=2, max_queued=3) as peer:
        exchanges = [AwaitedExchange() for _ in range(5)]
        for exchange in exchanges:
            peer.link.submit(exchange, "m")
        with pytest.raises(Overloaded, match="2 requests in flight, 3 queued"):
            peer.link.submit(AwaitedExchange(), "m")
        await peer.hear("m", 2)
        await wait_all_tasks_blocked()
        assert peer.methods == ["m", "m"]
        assert peer.link.requests.in_flight == 5
        peer.link.cancel(exchanges[4], "not wanted")  # never sent, so no cancellation is sent
        for count in (2, 3, 4):
            await peer.say({"jsonrpc": "2.0", "id": count - 1, **OK})
            await peer.hear("m", min(count + 1, 4))
        await peer.say({"jsonrpc": "2.0", "id": 4, **OK})
        await exchanges[3].wait_response()

    assert peer.methods == ["m"] * 4


async def test_clients_take_turns_in_the_queue() -> None:
    """Many requests of one client do not delay those of another."""

    class Sent(AwaitedExchange):
        by: str = ""

        @property
        def sender(self) -> object:
            return self.by

    async with connected(max_in_flight=1) as peer:
        exchanges = [Sent(by=by) for by in "aaaaabbc"]
        for number, exchange in enumerate(exchanges, 1):
            peer.link.submit(exchange, f"{exchange.by}{number}")
        peer.link.cancel(exchanges[6], "not wanted")
        for method in ("a1", "a2", "b6", "c8", "a3", "a4", "a5"):
            await peer.hear(method)
            assert peer.methods[-1] == method
            await peer.say({"jsonrpc": "2.0", "id": int(method[1:]), **OK})
        await exchanges[4].wait_response()


async def test_progress_extends_the_idle_timeout_up_to_the_total_timeout(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with connected() as peer, trio.open_nursery() as nursery:
        silent, patient = (
            AwaitedExchange(idle_timeout=1, total_timeout=10),
            AwaitedExchange(idle_timeout=1, total_timeout=3),
        )
        for exchange in (silent, patient):
            peer.link.submit(exchange, "tools/call", b'{"name":"x"}')
        await peer.hear("tools/call", 2)
        began = trio.current_time()

        async def report() -> None:
            for n in range(20):
                await trio.sleep(0.5)
                params = {"progressToken": 2, "progress": n}
                await peer.say({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})

        nursery.start_soon(report)
        with pytest.raises(CallTimeout, match="1 s without an answer or progress"):
            await silent.wait_response()
        assert trio.current_time() - began == pytest.approx(1, abs=0.1)
        with pytest.raises(CallTimeout, match="3 s in all"):
            await patient.wait_response()
        assert trio.current_time() - began == pytest.approx(3, abs=0.1)
        nursery.cancel_scope.cancel()
        await peer.hear("notifications/cancelled", 2)

    cancels = [message["params"]["requestId"] for message in peer.heard if "cancelled" in message["method"]]
    assert cancels == [1, 2]


class Buggy(AwaitedExchange):
    """A handler that raises in each callback."""

    def answered(self, message: object) -> None:
        raise KeyError("a bug")

    def progressed(self, params: object) -> None:
        raise KeyError("a bug")

    def failed(self, error: McpdError) -> None:
        super().failed(error)
        raise KeyError("a bug")


@pytest.mark.parametrize("how", ["answered", "timed out", "refused", "lost"])
async def test_bug_in_one_callback_does_not_end_the_connection(
    how: str, caplog: pytest.LogCaptureFixture, autojump_clock: trio.testing.MockClock
) -> None:
    """The exchange fails at least with an error that there is no answer."""
    async with connected({"m": OK}) as peer:
        buggy, other = Buggy(idle_timeout=5 if how == "timed out" else math.inf), AwaitedExchange()
        peer.link.submit(buggy, "tools/call", b'{"name":"x"}')
        peer.link.submit(other, "tools/call", b'{"name":"x"}')
        await peer.hear("tools/call", 2)
        params = {"progressToken": 1, "progress": 1}
        await peer.say({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})
        if how == "answered":
            await peer.say({"jsonrpc": "2.0", "id": 1, **OK})
        elif how == "refused":
            await peer.say({"jsonrpc": "2.0", "id": 1})
        elif how == "lost":
            await peer.close()
        with pytest.raises(McpdError), trio.fail_after(30):
            await buggy.wait_response()
        if how != "lost":
            await send_request(peer.link, "m", timeout=30)
            await peer.say({"jsonrpc": "2.0", "id": 2, **OK})
            await other.wait_response()
        else:
            with pytest.raises(LinkLost), trio.fail_after(30):
                await other.wait_response()

    assert caplog.text.count("peer: an error in mcpd itself") >= 2
    caplog.clear()


async def test_response_without_result_or_error_is_a_protocol_violation() -> None:
    """Node writes one for `undefined`. Only its exchange fails."""
    async with connected({"m": lambda request: b'{"jsonrpc":"2.0","id":1}\n', "ok": OK}) as peer:
        with pytest.raises(ProtocolViolation, match="without result or error"):
            await send_request(peer.link, "m")
        await send_request(peer.link, "ok")


async def test_lost_connection_fails_all_requests_and_says_which_may_have_run() -> None:
    """Unsent requests did not run."""
    async with connected(max_in_flight=2) as peer:
        exchanges = [AwaitedExchange(label="tool 'x'") for _ in range(3)]
        for exchange in exchanges:
            peer.link.submit(exchange, "tools/call", b"{}")
        await peer.hear("tools/call", 2)
        await peer.close()
        errors: list[LinkLost] = []
        for exchange in exchanges:
            with pytest.raises(LinkLost, match="peer: it has ended before tool 'x' was answered") as lost:
                await exchange.wait_response()
            errors.append(lost.value)
        with pytest.raises(LinkLost):
            peer.link.submit(AwaitedExchange(), "m")

    assert [error.may_have_run for error in errors] == [True, True, False]
    assert peer.ended is not None


@contextmanager
def deaf_server() -> Iterator[tuple[PipeChannel, int]]:
    """Yield a link to a server that does not read, and the descriptor for its output."""
    to_us, says = os.pipe()
    nobody, from_us = os.pipe()
    for fd in (to_us, from_us):
        os.set_blocking(fd, False)

    async def why() -> str:
        return "over"

    spec = ServerSpec(
        name="deaf", max_frame=1 << 20, max_in_flight=9, max_queued=9, timeouts=Timeouts(write=8)
    )
    try:
        yield PipeChannel(spec, to_us, from_us, why), says
    finally:
        for fd in (to_us, says, nobody, from_us):
            os.close(fd)


async def test_server_that_does_not_read_fails_only_unsent_requests(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Unsent requests fail repeatedly; requests that were sent before continue."""
    with deaf_server() as (link, answers):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.run)
            left = AwaitedExchange()
            link.submit(left, "tools/call", b"{}")
            for _ in range(2):
                stuck = [AwaitedExchange(), AwaitedExchange()]
                for exchange in stuck:
                    link.submit(exchange, "tools/call", msgspec.json.encode({"a": "x" * (1 << 20)}))
                began = trio.current_time()
                for exchange in stuck:
                    with pytest.raises(LinkLost, match="has not read its input") as lost:
                        await exchange.wait_response()
                    assert not lost.value.may_have_run
                assert trio.current_time() - began < 10
            os.write(answers, b'{"jsonrpc":"2.0","id":1,"result":{}}\n')
            await left.wait_response()
            nursery.cancel_scope.cancel()


async def test_replies_to_a_server_that_does_not_read_are_bounded() -> None:
    """A hundred thousand requests from the server use a bounded amount of memory."""
    with deaf_server() as (link, asks):

        class Refusing:
            def on_request(self, message: object, exchange: object = None) -> None:
                link.refuse(message, -32601, "x" * 1000)  # type: ignore[arg-type]  # it is one

            def on_notification(self, message: object, exchange: object = None) -> None: ...

        link.inbound = Refusing()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.run)
            async with trio.lowlevel.FdStream(os.dup(asks)) as stream:
                await stream.send_all(b'{"jsonrpc":"2.0","id":1,"method":"roots/list"}\n' * 20_000)
            await wait_all_tasks_blocked(0.05)
            assert link._outbox.backlog < 2 << 20
            nursery.cancel_scope.cancel()


async def test_a_cancelled_request_is_withdrawn_or_cancelled_at_the_server() -> None:
    async with connected({"other": OK}) as peer:
        exchange = AwaitedExchange()
        peer.link.submit(exchange, "m", b"{}")
        await peer.hear("m")
        peer.link.cancel(exchange, "not wanted")
        received = await peer.hear("notifications/cancelled")
        peer.link.cancel(exchange, "again")
        await peer.say({"jsonrpc": "2.0", "id": 1, **OK})
        await send_request(peer.link, "other")

    assert received["params"] == {"requestId": 1, "reason": "not wanted"}
    assert peer.methods.count("notifications/cancelled") == 1
    assert peer.link.deviations.late_replies == 1


_LONG = b'{"text":"' + b"x" * 5000 + b'"}'
TOO_LONG = {
    "first": lambda key: b'{"jsonrpc":"2.0","id":%d,"result":%b}\n' % (key, _LONG),
    "last": lambda key: b'{"result":%b,"jsonrpc":"2.0","id":%d}\n' % (_LONG, key),
    "text id": lambda key: b'{"id":"%d","jsonrpc":"2.0","error":%b}\n' % (key, _LONG),
}


@pytest.mark.parametrize("kind", TOO_LONG)
async def test_response_longer_than_the_limit_fails_only_its_request(kind: str) -> None:
    """The error names the limit, its value, and the setting, and says that the call may have run."""
    script: dict[str, Any] = {"tools/call": lambda request: TOO_LONG[kind](request["id"]), "m": OK}
    async with connected(script, max_frame=4096) as peer:
        other = AwaitedExchange()
        peer.link.submit(other, "wait")
        limit = "with more than 4096 bytes .raise `maxFrame`.*; it may have run, so it is not repeated"
        with pytest.raises(ProtocolViolation, match=limit) as error:
            await send_request(peer.link, "tools/call", {"name": "t"})
        assert error.value.data()["may_have_run"] is True
        await send_request(peer.link, "m")
        await peer.say({"jsonrpc": "2.0", "id": 1, **OK})
        await other.wait_response()
    assert peer.ended is None
    assert peer.link.deviations.counts == {
        "messages with more than 4096 bytes were dropped (raise `maxFrame` to allow them)": 1
    }


async def test_only_request_in_progress_is_answered_by_a_long_response_without_a_readable_id() -> None:
    """If there are several, none fails: it could be the wrong one. Their deadlines decide."""
    line = b'{"result":%b,"id":1,"more":%b}\n' % (_LONG, _LONG)
    async with connected({"m": lambda _: line}, max_frame=4096) as peer:
        with pytest.raises(ProtocolViolation, match="more than 4096 bytes"):
            await send_request(peer.link, "m")
        waiting = [AwaitedExchange() for _ in range(2)]
        for exchange in waiting:
            peer.link.submit(exchange, "wait")
        for one in (line, b"x" * 5000 + b"\n", b"[" + line[:-1] + b"]\n"):
            await peer.say(one)
        for exchange in waiting:
            await peer.say({"jsonrpc": "2.0", "id": int(exchange.key), **OK})
            await exchange.wait_response()
    assert list(peer.link.deviations.counts.values()) == [4]


async def test_long_request_of_a_server_is_refused_and_a_long_notification_ignored() -> None:
    async with connected({"m": OK}, max_frame=4096) as peer:
        exchange = AwaitedExchange()
        peer.link.submit(exchange, "wait")
        await peer.say(b'{"jsonrpc":"2.0","method":"notifications/message","params":%b}\n' % _LONG)
        await peer.say(b'{"jsonrpc":"2.0","id":1,"method":"sampling/createMessage","params":%b}\n' % _LONG)
        answer = await peer.hear("")
        assert not exchange.done.is_set()
        await send_request(peer.link, "m")
    assert answer["id"] == 1
    assert answer["error"]["code"] == -32602
    assert "sampling/createMessage was dropped: it has more than 4096 bytes" in answer["error"]["message"]


async def test_line_that_does_not_end_closes_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_MIN_LONGEST", 10_000)
    async with connected(max_frame=4096) as peer:
        exchange = AwaitedExchange()
        peer.link.submit(exchange, "m")
        await peer.say(b"x" * 20_000)
        with pytest.raises(LinkLost, match=r"a line of more than 16384 bytes \(`maxFrame` allows 4096"):
            await exchange.wait_response()


_ANSWER = '{"jsonrpc": "2.0", "id": ID, "result": {"text": "a } b {\\"id\\": 1}", "items": [{}, []]}}'
_SHARED_LINES = {
    "progress": f"progress 50% {_ANSWER}",
    "carriage returns": f"10%\r20%\r{_ANSWER}",
    "escapes on both sides": f"\x1b[33m{_ANSWER}\x1b[0m",
    "braces in the text": f"{{loading}} {_ANSWER} done {{}}",
    "after a notification": f'{{"jsonrpc": "2.0", "method": "notifications/x"}}{_ANSWER}',
    "after a logged request": f'received {{"jsonrpc":"2.0","id":1,"method":"ping"}} {_ANSWER}',
    "with indentation": json.dumps(json.loads(_ANSWER.replace("ID", "7")), indent=2).replace("7", "ID"),
    "indented by tabs": json.dumps(json.loads(_ANSWER.replace("ID", "7")), indent="\t").replace("7", "ID"),
}


@pytest.mark.parametrize("kind", _SHARED_LINES)
async def test_response_among_other_text_is_found(kind: str) -> None:
    """Nothing is sent in response to what a server has only logged."""
    answer = _SHARED_LINES[kind]
    script = {"m": lambda request: answer.replace("ID", str(request["id"])).encode() + b"\n"}
    async with connected(script) as peer:
        with trio.fail_after(PATIENCE):
            result = await send_request(peer.link, "m")
        assert json.loads(bytes(result)) == json.loads(_ANSWER.replace("ID", "1"))["result"]
        await send_request(peer.link, "m")
    assert peer.methods == ["m", "m"]
    assert sum(peer.link.deviations.counts.values()) == 2


async def test_response_garbled_by_other_text_fails_at_once_and_is_shown() -> None:
    garbled = b'50%%{"jsonrpc": "2.0", "id": %d, "result": {"te 60%% xt": "a}}\n'
    async with connected({"m": lambda request: garbled % request["id"]}) as peer:
        with (
            trio.fail_after(PATIENCE),
            pytest.raises(ProtocolViolation, match=r'unparsable message.*"te 60% xt'),
        ):
            await send_request(peer.link, "m")


@pytest.mark.parametrize("spelt", ['"%d"', "%d.0"])
async def test_response_id_of_another_type_is_matched(spelt: str) -> None:
    """All ids and progress tokens of mcpd are integers. The message is recorded unchanged."""
    got: list[bytes] = []

    class Call(AwaitedExchange):
        def progressed(self, params: Raw) -> None:
            got.append(bytes(params))

    async with connected() as peer:
        call = Call(total_timeout=5)
        peer.link.submit(call, "tools/call", b"{}")
        key = spelt % (await peer.hear("tools/call"))["id"]
        await peer.say(
            b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%b}}\n'
            % key.encode()
        )
        await peer.say(f'{{"jsonrpc":"2.0","id":{key},"result":{{"a":1}}}}\n'.encode())
        message = await call.wait_response()
        assert (message.key, bytes(message.result)) == (call.key, b'{"a":1}')
        assert len(got) == 1
        assert peer.link.deviations.unparsable_lines == 0
        assert list(peer.link.deviations.counts.values()) == [1]


async def test_long_lived_request_has_no_deadline_and_is_not_counted() -> None:
    """With a window of one, calls continue beside a subscription; the end of the link ends it."""
    async with connected({"m": OK}, max_in_flight=1) as peer:
        standing = AwaitedExchange(long_lived=True)
        peer.link.submit(standing, "subscriptions/listen", b"{}")
        await send_request(peer.link, "m", timeout=30)
        assert not peer.link.requests.is_busy
        assert standing.deadline == math.inf
        await peer.close()
        with pytest.raises(McpdError):
            await standing.wait_response()
