"""What replicas share through Redis, in the background: no call waits for it.

Each feature has its own part. A few times per second, a thread brings what has changed here to Redis, and
gets what others have changed. While Redis is down, each replica works with its last known state.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import time
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import trio
from cryptography.fernet import Fernet, InvalidToken

from mcpd.files.own_thread import OwnThread
from mcpd.state.redis_client import FAILURES, UNREACHABLE, connect, reason

T = TypeVar("T")
log = logging.getLogger("mcpd.shared")

_INTERVAL = 0.5
_MIN_PAUSE = 0.05
_RETRY_INTERVAL = 1.0
_CLAIM_SECONDS = 10
_MAX_REPLICAS = 1000
_CLAIM = """
local held = redis.call("get", KEYS[1])
if held and held ~= ARGV[1] then return {0, 0, 0} end
redis.call("set", KEYS[1], ARGV[1], "ex", ARGV[3])
local t = redis.call("time")
redis.call("zadd", KEYS[2], t[1], ARGV[2])
redis.call("zremrangebyscore", KEYS[2], "-inf", t[1] - ARGV[3])
return {redis.call("zcard", KEYS[2]), tonumber(t[1]), tonumber(t[2])}
"""


class Link:
    """Redis, as the parts use it in the thread. What they store is encrypted and authenticated."""

    def __init__(self, url: str, secret: bytes, replica: str) -> None:
        """`secret` is common to all replicas; `replica` is the address of this one."""
        self.redis = connect(url)
        self.replica = replica
        self.replicas = 1
        """How many there are, as far as is known."""
        self.clock = 0.0
        """The seconds by which the clock of Redis is ahead of this machine's."""
        self._key = hashlib.sha256(b"shared" + secret).digest()
        self._fernet = Fernet(base64.urlsafe_b64encode(self._key))

    def seal(self, what: str, content: bytes) -> bytes:
        return self._fernet.encrypt(what.encode() + b"\0" + content)

    def unseal(self, what: str, sealed: bytes) -> bytes | None:
        """Return the content; None if no replica has sealed it as this."""
        try:
            named, _, content = self._fernet.decrypt(sealed).partition(b"\0")
        except (InvalidToken, TypeError):
            return None
        return content if named == what.encode() else None

    def digest(self, *parts: str) -> str:
        """Return what only replicas can make of these."""
        return hmac.new(self._key, "\0".join(parts).encode(), "sha256").hexdigest()


Work = Callable[[Link], Callable[[], None]]


class SharedPart(Protocol):
    """Something that replicas share."""

    def prepare(self) -> Work:
        """Return what is to be done in the thread, which returns what to do then in the event loop. It may
        fail before that, so a part keeps what it has to send until then."""


class SharedState:
    """All parts. `run` must run."""

    def __init__(self, url: str, secret: bytes, replica: str, owner: str) -> None:
        """`owner` distinguishes this daemon from others that claim to be the same `replica`."""
        self.parts: list[SharedPart] = []
        self.is_down = True
        self.is_refused = False
        """Whether another daemon is this replica: what is meant for one of them may reach the other."""
        self.problem = ""
        """Why nothing is shared; empty if it is."""
        self.link = Link(url, secret, replica)
        self._owner = hashlib.sha256(owner.encode()).hexdigest()
        self._thread = OwnThread()
        self._wake = trio.Event()

    def exchange_soon(self) -> None:
        self._wake.set()

    async def ask(self, work: Callable[[Link], T], otherwise: T) -> T:
        """Do this in the thread now. Returns `otherwise` if Redis cannot be used."""
        if self.is_down:
            return otherwise
        try:
            return await self._thread.run(work, self.link)
        except (*FAILURES, RuntimeError):
            return otherwise

    async def run(self) -> None:
        try:
            while True:
                await self._exchange()
                if self.is_down:
                    await trio.sleep(_RETRY_INTERVAL)
                with trio.move_on_after(_INTERVAL):
                    await self._wake.wait()
                self._wake = trio.Event()
                await trio.sleep(_MIN_PAUSE)
        finally:
            with trio.move_on_after(2, shield=True):
                if not self.is_down:
                    await self._exchange()
                    await self._thread.run(self._leave)

    async def _exchange(self) -> None:
        works = [part.prepare() for part in self.parts]
        try:
            problem, finish = await self._thread.run(self._do, works)
        except (*FAILURES, RuntimeError) as error:  # RuntimeError: no thread can be started
            self.is_down = True
            self._report(
                f"Redis cannot be used ({reason(error)}), so what other replicas change is not known"
            )
            return
        self.is_down = False
        self._report(problem)
        for each in finish:
            each()

    def _do(self, works: Sequence[Work]) -> tuple[str, list[Callable[[], None]]]:
        """Do all works. Returns what is wrong, and the rest. Runs in the thread."""
        link, problem, finish, began = self.link, "", list[Callable[[], None]](), time.time()
        keys = (f"mcpd:replica:{link.replica}", "mcpd:replicas")
        answer = link.redis.eval(_CLAIM, 2, *keys, self._owner, link.replica, _CLAIM_SECONDS)
        replicas, seconds, microseconds = map(int, answer)
        self.is_refused = not replicas
        if self.is_refused:
            fix = "set another `cluster.address` for one of them"
            return f"another daemon is the replica {link.replica}, too, so nothing is shared; {fix}", []
        link.replicas = min(max(replicas, 1), _MAX_REPLICAS)
        link.clock = seconds + microseconds / 1e6 - (began + time.time()) / 2
        for work in works:
            try:
                finish.append(work(link))
            except UNREACHABLE:
                raise
            except FAILURES as error:
                problem = f"Redis contains what no replica stores ({reason(error)}), so not all is shared"
        return problem, finish

    def _leave(self) -> None:
        """Let another daemon be this replica. Runs in the thread."""
        if not self.is_refused:
            self.link.redis.delete(f"mcpd:replica:{self.link.replica}")
            self.link.redis.zrem("mcpd:replicas", self.link.replica)

    def _report(self, problem: str) -> None:
        """Note what is wrong, and log it once, also if the reason in parentheses changes."""
        if problem.partition("(")[0] != self.problem.partition("(")[0]:
            log.log(logging.WARNING if problem else logging.INFO, "%s", problem or "sharing with Redis again")
        self.problem = problem
