"""Resolving `${secret:…}`, `${file:…}` and `${cmd:…}` at each start, so that a reconnect uses new values.

A disk or a command that does not answer affects only the servers that need it.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from functools import partial

import attrs
import trio

from mcpd.config.secret_store import MAX_SECRET_SIZE, decode_secret, fetch_secret, secrets_path
from mcpd.model.errors import BadSpec
from mcpd.model.server_spec import RemoteSpec, SecretReference, ServerSpec, StdioSpec, UnavailableSecret
from mcpd.model.text import shorten
from mcpd.privacy.redact import Redactor
from mcpd.process.labels import INSTANCE_VARIABLE, labels_of, start_process
from mcpd.supervision.restart import SecretUnavailable

SECRET_TIMEOUT = 30.0
"""Seconds per secret: a password manager may ask the user for confirmation."""
_CHECK_TIMEOUT = 1.0
"""Seconds to find out whether a secret has changed."""
_DRAIN_TIMEOUT = 1.0
"""Seconds to read the rest of the output after the command has exited."""
_MAX_STDERR = 2000
"""Bytes kept of the command's stderr."""

FoundSecrets = dict[SecretReference, str | UnavailableSecret]


class Secrets:
    """Resolves the references in definitions. Created once by the daemon."""

    def __init__(self, instance: str, environ: Mapping[str, str], redactor: Redactor) -> None:
        self.command_pids: set[int] = set()
        """Running `${cmd:…}` processes: excluded from the cleanup of orphans."""
        self._instance, self._environ, self._redactor = instance, environ, redactor
        self._reads = SecretReads()

    async def resolve(self, spec: ServerSpec, used: FoundSecrets | None = None) -> ServerSpec:
        """Return `spec` with every reference replaced; the values are masked in all output from then on.

        Adds what each reference referred to to `used`.
        Raises SecretUnavailable with every unresolved place. Takes at most `SECRET_TIMEOUT` per secret.
        """
        if spec.unresolved is None:
            return spec
        known: FoundSecrets = {} if used is None else used
        definition = spec.name.partition("~")[0]  # a dedicated instance uses its original's secrets
        try:
            # A default may contain further references, so this repeats until nothing is missing.
            while (now := spec.unresolved.resolve(known)).unresolved:
                for reference in now.unresolved:
                    known[reference] = found = await self.fetch(reference)
                    if isinstance(found, str):
                        self._redactor.add([found], of=definition)
        except BadSpec as error:
            raise SecretUnavailable(
                "; ".join(f"{each.path}: {each.message} ({each.fix})" for each in error.problems)
            ) from None
        self._redactor.add(now.secrets, of=definition)
        return _apply_resolved(now.spec, spec)

    async def renew(self, spec: ServerSpec, used: FoundSecrets) -> RemoteSpec | None:
        """Return the definition of a remote server with the secrets of now, and change `used` to these; None
        if they are the same, or unavailable.
        """
        found: FoundSecrets = {}
        try:
            resolved = await self.resolve(spec, found)
        except SecretUnavailable:
            return None
        if found == used or not isinstance(resolved, RemoteSpec):
            return None
        used.update(found)
        return resolved

    async def describe_old(self, used: FoundSecrets) -> str:
        """Say which secret of a server that was started with `used` was changed or removed in the built-in
        store since; empty if none was, or if the store does not answer within a second.
        """
        with trio.move_on_after(_CHECK_TIMEOUT):
            for reference, value in used.items():
                if reference.kind != "secret" or not isinstance(value, str):
                    continue
                now = await self._reads.fetch(reference, self._environ)
                name = reference.arguments[0]
                if isinstance(now, UnavailableSecret):
                    if now.missing:
                        return f"it still uses the secret {name}, which was removed"
                elif now != value:
                    return f"it still uses the old value of the secret {name}"
        return ""

    async def fetch(self, reference: SecretReference) -> str | UnavailableSecret:
        """Look up what a reference refers to, for at most SECRET_TIMEOUT seconds."""
        if reference.kind != "cmd":
            return await self._reads.fetch(reference, self._environ)
        with trio.move_on_after(SECRET_TIMEOUT):
            return await self._run_command(reference.arguments)
        what = f"the command {shorten(reference.arguments[0], 80)}"
        message = f"{what} did not return a secret within {SECRET_TIMEOUT:g} s"
        return UnavailableSecret(message, "run it in a shell")

    async def _run_command(self, argv: tuple[str, ...]) -> str | UnavailableSecret:
        """Return the command's output. It runs without a shell, and its session is killed in any case."""
        what = f"the command {shorten(argv[0], 80)}"
        mark = f"{self._instance}.0.command"
        try:
            process = await start_process(
                list(argv),
                labels_of(mark),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**self._environ, INSTANCE_VARIABLE: mark},
                start_new_session=True,
            )
        except OSError as error:
            return UnavailableSecret(f"{what} cannot be run: {error.strerror or error}", "fix the definition")
        self.command_pids.add(process.pid)
        assert process.stdout is not None
        assert process.stderr is not None
        stdout, stderr = bytearray(), bytearray()
        try:
            async with process.stdout, process.stderr, trio.open_nursery() as nursery:
                nursery.start_soon(_read_up_to, process.stderr, stderr, _MAX_STDERR)
                nursery.start_soon(_read_up_to, process.stdout, stdout, MAX_SECRET_SIZE + 1)
                await process.wait()
                _end_session(process.pid)  # background processes may hold its output open
                nursery.cancel_scope.deadline = trio.current_time() + _DRAIN_TIMEOUT
        finally:
            _end_session(process.pid)
            with trio.CancelScope(shield=True):  # after SIGKILL this is quick
                await process.wait()
            self.command_pids.discard(process.pid)
        if process.returncode:
            last = shorten(
                (stderr.decode("utf-8", "replace").strip().splitlines() or ["no output on stderr"])[-1], 200
            )
            return UnavailableSecret(f"{what} failed with {process.returncode}: {last}", "run it in a shell")
        return decode_secret(bytes(stdout), what)


def _apply_resolved(made: ServerSpec, spec: ServerSpec) -> ServerSpec:
    """Take over only the fields that may hold secrets: the others may have changed meanwhile."""
    if isinstance(spec, StdioSpec) and isinstance(made, StdioSpec):
        return attrs.evolve(spec, command=made.command, args=made.args, env=made.env, unresolved=None)
    assert isinstance(spec, RemoteSpec)
    if not isinstance(made, RemoteSpec) or made.kind != spec.kind:
        raise SecretUnavailable(
            "its resolved URL needs another transport than expected (set `type` in its definition)"
        )
    oauth = attrs.evolve(made.oauth, account=spec.oauth.account) if spec.person else made.oauth
    return attrs.evolve(spec, url=made.url, headers=made.headers, oauth=oauth, unresolved=None)


def _end_session(leader: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


async def _read_up_to(stream: trio.abc.ReceiveStream, into: bytearray, most: int) -> None:
    """Read to the end, keeping the first `most` bytes."""
    with suppress(trio.ClosedResourceError):
        async for portion in stream:
            into += portion[: most - len(into)]


class SecretReads:
    """Reads each file at most once at a time, in threads that nothing else uses.

    A read that hangs keeps its thread, because a thread cannot be stopped, and the file is not read again
    until it has finished. Reads of other files do not wait for it.
    """

    def __init__(self) -> None:
        self._limiters: dict[str, trio.CapacityLimiter] = {}
        """For each file, a limiter that the thread which reads it holds until it has finished."""

    async def fetch(self, reference: SecretReference, environ: Mapping[str, str]) -> str | UnavailableSecret:
        """Look up any reference except a command, for at most SECRET_TIMEOUT seconds."""
        kind, name = reference.kind, reference.arguments[0]
        place = str(secrets_path(environ)) if kind == "secret" else f"the {kind} {name}"
        limiter = self._limiters.setdefault(place, trio.CapacityLimiter(1))
        fetch = partial(fetch_secret, reference, environ)
        with trio.move_on_after(SECRET_TIMEOUT):
            return await trio.to_thread.run_sync(fetch, abandon_on_cancel=True, limiter=limiter)
        return UnavailableSecret(
            f"reading {shorten(place, 200)} did not finish within {SECRET_TIMEOUT:g} s",
            "check that its disk or network share answers, or move the file",
        )
