"""Putting a server's secrets in, each time it starts: so a new one needs no more than a reconnect."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from functools import partial

import attrs
import trio

from mcpd.config.secret_store import MAX_SECRET_SIZE, decode_secret, fetch_secret
from mcpd.model.errors import BadSpec
from mcpd.model.server_spec import RemoteSpec, SecretReference, ServerSpec, StdioSpec, UnavailableSecret
from mcpd.model.text import shorten
from mcpd.supervision.context import Surroundings
from mcpd.supervision.failure import NoSecret
from mcpd.support.orphans import INSTANCE_VARIABLE

PATIENCE = 30.0
"""Seconds for one secret: a password manager may have to ask a person for a finger."""
_REST = 1.0
"""Seconds for reading what is still in the pipes once it has ended."""
_WORDS = 2000
"""Bytes kept of what a command says to its stderr."""


async def filled(spec: ServerSpec, around: Surroundings) -> ServerSpec:
    """`spec` with every `${…}` replaced; their values are masked from then on.

    Raises NoSecret, with each place where one is missing. Bounded by `PATIENCE` for each secret.
    """
    if spec.unresolved is None:
        return spec
    known: dict[SecretReference, str | UnavailableSecret] = {}
    definition = spec.name.partition("~")[0]  # an instance has the secrets of what it is one of
    try:
        # A default may want more, so in rounds; each of them knows more, so they end.
        while (now := spec.unresolved.resolve(known)).unresolved:
            for reference in now.unresolved:
                known[reference] = found = await _fetched(reference, around)
                if isinstance(found, str):
                    around.redactor.add([found], of=definition)
    except BadSpec as error:
        raise NoSecret(
            "; ".join(f"{each.path}: {each.message} ({each.fix})" for each in error.problems)
        ) from None
    around.redactor.add(now.secrets, of=definition)
    return _with_values_of(now.spec, spec)


def _with_values_of(made: ServerSpec, spec: ServerSpec) -> ServerSpec:
    """Only what may hold a secret is taken over: the rest of `spec` may have been changed since."""
    if isinstance(spec, StdioSpec) and isinstance(made, StdioSpec):
        return attrs.evolve(spec, command=made.command, args=made.args, env=made.env, unresolved=None)
    assert isinstance(spec, RemoteSpec)
    if not isinstance(made, RemoteSpec) or made.kind != spec.kind:
        raise NoSecret("its URL is of another kind than was thought (write the `type` into its definition)")
    return attrs.evolve(spec, url=made.url, headers=made.headers, unresolved=None)


async def _fetched(reference: SecretReference, around: Surroundings) -> str | UnavailableSecret:
    with trio.move_on_after(PATIENCE):
        if reference.kind == "cmd":
            return await _from_command(reference.arguments, around)
        look = partial(fetch_secret, reference, around.environ)
        return await trio.to_thread.run_sync(
            look, abandon_on_cancel=True
        )  # a dead network disk never answers
    what = "the command" if reference.kind == "cmd" else "the file"
    message = f"{what} {shorten(reference.arguments[0], 80)} gave no secret within {PATIENCE:g} s"
    return UnavailableSecret(message, "try it in a shell")


async def _from_command(words: tuple[str, ...], around: Surroundings) -> str | UnavailableSecret:
    """What it prints. No shell; its whole session is ended with it, whatever happens."""
    what = f"the command {shorten(words[0], 80)}"
    environ = {**around.environ, INSTANCE_VARIABLE: f"{around.instance}.command"}
    try:
        process = await trio.lowlevel.open_process(
            list(words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environ,
            start_new_session=True,
        )
    except OSError as error:
        return UnavailableSecret(
            f"{what} cannot be run: {error.strerror or error}", "correct it in the definition"
        )
    around.commands.add(process.pid)
    assert process.stdout is not None
    assert process.stderr is not None
    said = bytearray()
    told = bytearray()
    try:
        async with process.stdout, process.stderr, trio.open_nursery() as nursery:
            nursery.start_soon(_keep, process.stderr, told, _WORDS)
            nursery.start_soon(_keep, process.stdout, said, MAX_SECRET_SIZE + 1)
            await process.wait()
            _end_session(process.pid)  # what it left behind may hold its output open
            nursery.cancel_scope.deadline = trio.current_time() + _REST
    finally:
        _end_session(process.pid)
        with trio.CancelScope(shield=True):  # SIGKILL: soon
            await process.wait()
        around.commands.discard(process.pid)
    if process.returncode:
        last = shorten((told.decode("utf-8", "replace").strip().splitlines() or ["it said nothing"])[-1], 200)
        return UnavailableSecret(f"{what} failed with {process.returncode}: {last}", "try it in a shell")
    return decode_secret(bytes(said), what)


def _end_session(leader: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


async def _keep(stream: trio.abc.ReceiveStream, into: bytearray, most: int) -> None:
    """Read to its end, and keep the first bytes."""
    with suppress(trio.ClosedResourceError):
        async for portion in stream:
            into += portion[: most - len(into)]
