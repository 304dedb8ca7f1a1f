"""One server's whole life: the program counter is its state.

`ManagedServer.run` owns the connection from spawn to the last descendant's end. Everybody else
leaves a wish (`reconnect`, `enable`, …), synchronously; the owner notices and acts.
"""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections.abc import Mapping, Sequence
from functools import partial

import attrs
import trio

from mcpd.model.errors import NotReady
from mcpd.model.events import Event, EventKind
from mcpd.model.server_spec import RemoteSpec, ServerSpec, StdioSpec
from mcpd.model.status import Failure, ServerState, ServerStatus, rfc3339
from mcpd.protocol.upstream_session import Hooks, ServerNotification, Upstream
from mcpd.protocol.upstream_subscriptions import NotificationInterests
from mcpd.state_file import fingerprint
from mcpd.supervision.attempt import Attempt
from mcpd.supervision.backoff import Backoff
from mcpd.supervision.catalog import Catalog
from mcpd.supervision.catalog_sync import ListKeeper
from mcpd.supervision.connect_strategy import Approach
from mcpd.supervision.connection import Connection, opened, patience
from mcpd.supervision.context import Surroundings
from mcpd.supervision.desired_state import Desired
from mcpd.supervision.elicitation_history import ElicitationHistory
from mcpd.supervision.failure import Evidence, Verdict, asked_to_wait, is_bug
from mcpd.supervision.health import Prompt, watch_liveness
from mcpd.supervision.message_tap import Taps
from mcpd.supervision.package_download import fetched, runner_for
from mcpd.supervision.recovery import recovery
from mcpd.supervision.resolve_secrets import filled
from mcpd.supervision.server_log import ServerLog
from mcpd.supervision.start_slot import StartSlot
from mcpd.supervision.state import Standing
from mcpd.supervision.status_report import Known, noise, snapshot
from mcpd.supervision.trace import Trace
from mcpd.support.broadcast import CallbackList
from mcpd.support.memory import trim_heap
from mcpd.support.processes import CpuTimeTotal
from mcpd.transports.base import Channel
from mcpd.transports.call_stats import Tally
from mcpd.transports.child_environment import Launch, child_environment, prepare
from mcpd.transports.child_process import Child
from mcpd.wire.message import ABSENT
from mcpd.wire.url import redact_url

log = logging.getLogger("mcpd.server")

_marks = itertools.count(1)
"""No two children of a daemon share one: names may hold dots, so `1.x` would be taken for `1.x.y` too."""
_STARTING = 2.0
"""Who has been starting for so long waits for a download or hangs, and holds up nobody else any more."""
_LOOK_AGAIN = 10.0
"""Seconds between two looks at the wall clock: while our timers sleep with the machine, it goes on."""
_EAR = 1.0
"""What a server says unasked is waited for before its lists are fetched, but no longer than this."""


class ManagedServer:
    """Made by the supervisor, for as long as its name is in the set."""

    def __init__(self, spec: ServerSpec, around: Surroundings, of: ManagedServer | None = None) -> None:
        self.spec = spec
        self.of = of
        """The server of a definition that this is one more instance of, for some of its clients."""
        self.is_over = False
        """It has ended for good."""
        self.log = ServerLog(around.log_dir / f"{spec.name}.log", around.redactor.mask)
        self.taps = Taps(spec.name, around.redactor.mask)
        self.tally: Tally = Tally() if of is None else of.tally
        """Of all its connections, and of those of its instances."""
        self.spent = CpuTimeTotal()
        """Processor time, its instances' included, as often as somebody asks."""
        self.interests = NotificationInterests()
        """What clients want to hear of it beside answers; held across its connections."""
        self.heard: CallbackList[ServerNotification] = CallbackList()
        """Calls every listener with what the server says unasked: see `Said`. Called in the reader, so
        that it keeps its place among the answers: a listener must not block."""
        self.upstream: Upstream | None = None
        """There while, and only while, the state is CONNECTED."""
        self.child: Child | None = None
        self.launch: Launch | None = None
        self.trace = Trace(spec.name, around.redactor.mask)
        self._around = around
        self._fingerprint = fingerprint(spec.identity)
        self._backoff = Backoff(patience(spec), around.chance)
        self._standing = Standing()
        self._connections = 0
        if around.clients.heard is not None:
            self.heard.add(partial(around.clients.heard, self))
        self.turn_queue: object = None
        """Reserved for `gateway.call_concurrency`, which keeps the server's turn queue here."""
        self.elicitation_history = ElicitationHistory(
            never_asks=around.store.is_quiet(self._fingerprint),
            learn=partial(around.store.set_quiet, self._fingerprint),
        )
        self._heard_at: float | None = None
        """When something came last on the connection before (`trio.current_time()`)."""
        self._last_spawn = -math.inf
        self._desired = Desired(spec, around.store)
        self._approach = Approach(spec, around.store, self._fingerprint)
        self._wish = trio.Event()
        self._prompt = Prompt()
        self._attempt = Attempt()
        self._lists = ListKeeper(spec, around.store, self._fingerprint, self._list_changed)
        self._debug()

    # ── wishes: synchronous, level-triggered ────────────────────────────────────────────────────

    def reconnect(self) -> None:
        """End the connection, if any, and start afresh at once, whatever the backoff says."""
        self._desired.connect()
        self._wish_for("a reconnect was asked for")

    def connect(self) -> None:
        """Be connected. Nothing happens to a connection that is there."""
        is_under_way = self._standing.state in (ServerState.CONNECTED, ServerState.PENDING)
        if self._desired.disconnected or not is_under_way:
            self._desired.connect()
            self._wish_for("a connection was asked for")

    def disconnect(self) -> None:
        """Be stopped until `connect`, `reconnect` or the daemon's next start."""
        if self._desired.disconnect():
            self._wish_for("it was disconnected")

    def enable(self, on: bool, until: float | None = None) -> None:
        """The toggle; it outlives the daemon. Off `until` a moment of the wall clock: then on by itself."""
        if self._desired.enable(on, until):
            self._wish_for("it was switched on" if on else f"it was {self._desired.why_off}")

    def demand(self) -> None:
        """Somebody wants to use it: a lazy server starts."""
        if self._desired.demand():
            self._wish_for("it is needed")

    def adopt(self, spec: ServerSpec) -> None:
        """Take over a definition of the same identity: the process and the connection stay."""
        assert spec.identity == self.spec.identity
        enabled_changed = spec.enabled != self.spec.enabled
        self.spec = self._approach.spec = self._lists.spec = spec
        self._backoff.policy = patience(spec)
        self._lists.mark_stale("tools")
        self._debug()
        if enabled_changed and self._desired.define(spec.enabled):
            self._wish_for("its definition changed")

    def _debug(self) -> None:
        self.trace.debugged = self.spec.debug or self._around.debug
        self.taps.show_to(self.trace.frame if self.trace.debugged else None)

    def _wish_for(self, why: str) -> None:
        self._backoff.reset()
        self._approach.afresh()
        self._standing.failure = None
        self._standing.no_retry()
        self._wish.set()
        if self.upstream is not None:
            self.upstream.link.close(why)
        self._let_go()
        self._attempt.scope.cancel(reason=why)
        self._announce(ServerState.DISABLED if self._desired.off else ServerState.PENDING, why)

    def look_after(self, seconds: float) -> None:
        """Ask a remote server whether it is there, that soon: the network may be another one by now. A
        process has slept as long as we have."""
        if isinstance(self.spec, RemoteSpec):
            self._prompt.look_in(seconds)

    def ended(self) -> None:
        """Its task is over, and no other will run it: nobody waits for it any more."""
        self.is_over = True
        self._standing.tell()

    def start_over(self) -> None:
        """`run` has failed and will be entered again: whoever waits, waits on."""
        self._let_go()
        self._announce(ServerState.PENDING, "starting again after an error in mcpd itself")

    # ── what others may read, and wait for ──────────────────────────────────────────────────────

    @property
    def state(self) -> ServerState:
        return self._standing.state

    @property
    def catalog(self) -> Catalog | None:
        """Its lists as last fetched; None before the first time."""
        return self._lists.catalog

    @property
    def lists_expired(self) -> bool:
        """Whether `use_lists` has something to do, and a server to do it with."""
        return self.upstream is not None and bool(self._lists.expired)

    @property
    def is_unheard(self) -> bool:
        """Whether it is being started for the first time ever: soon more may be known of it."""
        return self.catalog is None and self.state is ServerState.PENDING and not self._backoff.tries

    async def use_lists(self) -> None:
        """See `ListKeeper.use`. Returns at once where there is no connection."""
        if self.lists_expired:
            await self._lists.use()

    @property
    def validators(self) -> dict[str, object]:
        """See `ListKeeper.validators`."""
        return self._lists.validators

    def status(self) -> ServerStatus:
        """A snapshot, with the evidence."""
        heard_at = self._heard_at if self.upstream is None else self.upstream.link.heard_at
        return snapshot(
            Known(
                spec=self.spec,
                stands=self._standing,
                kind=self._approach.kind,
                upstream=self.upstream,
                catalog=self.catalog,
                child=self.child,
                log=self.log,
                noise="" if self.upstream is None else self._noise(self.upstream.link),
                connections=self._connections,
                attempts=self._backoff.tries,
                heard=None if heard_at is None else time.time() - (trio.current_time() - heard_at),
                off_until=self._desired.off_until,
            )
        )

    def invocation(self) -> tuple[Sequence[str], Mapping[str, str], str | None]:
        """The command line, environment and directory that its process has, or would have."""
        spec = self.spec
        if not isinstance(spec, StdioSpec):
            return (), {}, None
        env = child_environment(spec, self._around.environ, "")
        return (spec.command, *spec.args), env, spec.cwd

    @property
    def place(self) -> str:
        """Where a remote server listens, without the parts of the URL that may hold a secret."""
        return redact_url(self.spec.url) if isinstance(self.spec, RemoteSpec) else ""

    async def wait_settled(self) -> None:
        """Until no attempt is under way or queued."""
        while not self.is_over and (not self._standing.state.is_settled or self._wish.is_set()):
            await self._standing.wait_moved()

    async def wait_ready(self) -> Upstream:
        """The connected upstream, starting a lazy server and looking again for one that could not be reached.
        The caller bounds the wait.

        Raises NotReady at once where waiting is no use: switched off, gone, or failed with no attempt soon.
        """
        if not self.is_over:
            self.demand()
            if self._standing.worth_a_look:
                self._wish.set()  # ends the pause, and nothing else: it counts as any attempt does
        while self.upstream is None:
            if self.is_over or (self._standing.hopeless and not self._wish.is_set()):
                raise self.not_ready()
            await self._standing.wait_moved()
        return self.upstream

    def not_ready(self) -> NotReady:
        """Why nothing can be sent now, and what to do."""
        return self._standing.not_ready(self.spec.name, over=self.is_over)

    # ── the life ────────────────────────────────────────────────────────────────────────────────

    async def run(self) -> None:
        """Keep it as it is wished to be, until cancelled."""
        try:
            while True:
                self._wish = trio.Event()
                if self._desired.off:
                    self._announce(ServerState.DISABLED, self._desired.why_off)
                    await self._wait_while_off()
                elif not self._desired.demanded:
                    self._announce(ServerState.IDLE, "starts on first use")
                    await self._wish.wait()
                else:
                    self._announce(ServerState.PENDING, "connecting")
                    await self._live_and_recover()
        finally:
            self.log.close()

    async def _wait_while_off(self) -> None:
        """Until somebody wishes something else, or the time that it was switched off for is over."""
        while not self._wish.is_set():
            left = self._desired.seconds_off
            if left <= 0:
                self._desired.time_is_over()
                self._wish_for("the time that it was switched off for is over")
                return
            with trio.move_on_after(left if left == math.inf else min(left, _LOOK_AGAIN)):
                await self._wish.wait()

    async def _live_and_recover(self) -> None:
        attempt = self._attempt = Attempt()
        with attempt.scope:
            if self._wish.is_set():
                return
            try:
                await self._connect_and_serve()
            except* Exception as group:  # the firewall: one server's trouble is its own
                self._note(group, None)
        trim_heap()
        if not self._wish.is_set() and attempt.over:
            with trio.move_on_at(self._standing.retry_due):
                await self._wish.wait()
        self._standing.no_retry()

    def _note(self, error: BaseException, returncode: int | None, noise: str = "") -> None:
        """Say at once that the connection is over, why, and when the next begins; the first word counts.

        The pause runs from here on, while the process is still being ended.
        """
        attempt = self._attempt
        if attempt.over or self._wish.is_set():
            if is_bug(error):
                raise error  # to the outer firewall: there is no state left to tell it in
            return  # the first word counts; and what a wish tears down is no failure
        another_way = self._approach.another_way(error, was_ready=attempt.ready_at is not None)
        if another_way:
            self._announce(ServerState.PENDING, another_way)
            return
        attempt.over = True
        if is_bug(error):
            log.error(
                "%s: an error in mcpd itself; the server is started again", self.spec.name, exc_info=error
            )
        evidence = Evidence(
            returncode=returncode,
            stderr=self.log.last_words() if self.child else (),
            noise=noise,
            remote=isinstance(self.spec, RemoteSpec),
        )
        failure, verdict = attempt.post_mortem(error, evidence, self._approach)
        failure = attrs.evolve(failure, message=self._around.redactor.mask(failure.message))
        self._failed(failure, verdict, asked_to_wait(error))

    def _noise(self, link: Channel) -> str:
        return noise(link, self._approach.kind, self._around.redactor.mask)

    def _failed(self, failure: Failure, verdict: Verdict, asked: float) -> None:
        policy, name = self.spec.restart, self.spec.name
        if self._attempt.proves_well(policy):
            self._backoff.reset()
        follows = recovery(name, verdict, asked, self._backoff, policy)
        self._standing.failure = attrs.evolve(failure, crash_loop=follows.crash_loop)
        log.log(follows.level, "%s: %s%s", name, failure.message, follows.words)
        if follows.pause is not None:
            self._standing.retry_in(follows.pause)
        self._announce(follows.state, follows.reason)

    async def _connect_and_serve(self) -> None:
        """Hold one connection for as long as it lasts; how it ended has been noted, or is raised."""
        around = self._around
        spec = await filled(self.spec, around)
        if isinstance(spec, StdioSpec):
            mark = f"{around.instance}.{next(_marks)}.{spec.name}"
            self.launch = prepare(spec, around.environ, mark)
        async with StartSlot(around.starts) as slot:
            await trio.sleep(max(0.0, self._last_spawn + spec.restart.floor - trio.current_time()))
            self._last_spawn = trio.current_time()
            self.log.new_life()
            opening = opened(
                spec, self.launch, self._approach.kind, around, self.log.feed, self.trace.request
            )
            try:
                async with opening as connection:
                    self.child = connection.child
                    connection.link.tally = self.tally
                    self.taps.connected(connection.link)
                    await self._hold(connection, slot)
            finally:
                self.taps.ended()
                self.child = None  # however it ended: its number may be somebody else's from now on

    async def _hold(self, connection: Connection, slot: StartSlot) -> None:
        child, link = connection.child, connection.link
        try:
            await self._serve(connection, slot)
        except* Exception as group:
            self._attempt.called_well_at = link.called_well_at
            if child is not None:
                await child.wait_stderr_drained()
            self._let_go()
            self._note(group, None if child is None else child.returncode, self._noise(link))
        finally:
            slot.free()
            self._let_go()
            self.interests.on_disconnected()
            link.close("the connection is being ended")

    def _let_go(self) -> None:
        """Nobody is to use the connection any more."""
        if self.upstream is not None:
            self._heard_at = self.upstream.link.heard_at
            self.upstream = None

    async def _serve(self, connection: Connection, slot: StartSlot) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.run)
            nursery.start_soon(slot.free_after, _STARTING)
            self._attempt.runner = runner_for(self.spec)
            fetching = await fetched(self.spec, connection, self.log.last_words, self._say_fetching)
            self._attempt.runner = None
            upstream = await self._shake_hands(connection.link, fetching)
            if (
                upstream.run_subscriptions is not None
            ):  # before its lists are fetched: they may change right after
                nursery.start_soon(upstream.run_subscriptions)
                with trio.move_on_after(_EAR):
                    await upstream.notifications_ready.wait()
                upstream.notifications_ready.set()  # from now on we look up what it could not announce
            await self._get_ready(upstream)
            slot.free()
            times = self.spec.timeouts
            nursery.start_soon(watch_liveness, upstream, times, connection.is_stopped, self._prompt)
            nursery.start_soon(self._lists.keep_fresh, upstream)
            await trio.sleep_forever()

    def _say_fetching(self, doing: str) -> None:
        self._announce(ServerState.PENDING, self._around.redactor.mask(doing))

    async def _shake_hands(self, link: Channel, fetching: float) -> Upstream:
        if not self._approach.goes_on:
            self.trace.afresh()
        if fetching >= 1:
            self.trace.step("install", "the server has been started", fetching)
            self._announce(ServerState.PENDING, "connecting")
        return await self._approach.negotiate(link, self._hooks(), self.trace.step)

    def _hooks(self) -> Hooks:
        clients, asked = self._around.clients, self._around.clients.asked
        return Hooks(
            on_list_changed=self._lists.mark_stale,
            on_log=self.log.add,
            capabilities=clients.capabilities,
            on_request=None if asked is None else partial(asked, self),
            on_notification=self.heard,
            refresh_list=self._lists.refresh,
            on_modern_detected=self._approach.modern_after_all,
            interests=self.interests,
        )

    async def _get_ready(self, upstream: Upstream) -> None:
        """The lists; then, and only then, CONNECTED is announced."""
        catalog = await self._lists.fetch(upstream)
        self._approach.found(upstream)
        self.upstream = upstream
        self._attempt.ready_at = trio.current_time()
        self._connections += 1
        self._lists.take(catalog)
        self._announce(ServerState.CONNECTED, "")
        self._lists.remember()

    def _list_changed(self, feature: str, words: str) -> None:
        self._tell(EventKind(feature), words)
        self.heard(ServerNotification(f"notifications/{feature}/list_changed", ABSENT))

    # ── telling ─────────────────────────────────────────────────────────────────────────────────

    def _announce(self, state: ServerState, reason: str) -> None:
        """Every change of state goes through here."""
        if self._standing.become(state, reason):
            log.log(self._loudness(state), "%s: %s%s", self.spec.name, state.value, reason and f" ({reason})")
        self._tell(EventKind.STATUS, reason)
        self._standing.tell()

    def _loudness(self, state: ServerState) -> int:
        """How loud a change of state is logged: a server that keeps failing says so once in each step."""
        under_way = state in (ServerState.PENDING, ServerState.FAILED)  # a failure has its own line
        flapping = self._backoff.tries > self.spec.restart.intensity
        return logging.DEBUG if under_way or flapping else logging.INFO

    def _tell(self, kind: EventKind, message: str) -> None:
        self._around.announce(
            Event(
                kind=kind,
                at=rfc3339(time.time()),
                server=self.spec.name,
                message=message,
                status=self.status(),
            )
        )
