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
from mcpd.supervision.context import SupervisorContext
from mcpd.supervision.restart import SecretUnavailable
from mcpd.support.orphans import INSTANCE_VARIABLE

SECRET_TIMEOUT = 30.0
"""Seconds for one secret: a password manager may have to ask a person for a finger."""
_DRAIN_TIMEOUT = 1.0
"""Seconds for reading what is still in the pipes once it has ended."""
_MAX_STDERR = 2000
"""Bytes kept of what a command says to its stderr."""


async def resolve_secrets(spec: ServerSpec, context: SupervisorContext) -> ServerSpec:
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
                known[reference] = found = await _resolve_reference(reference, context)
                if isinstance(found, str):
                    context.redactor.add([found], of=definition)
    except BadSpec as error:
        raise SecretUnavailable(
            "; ".join(f"{each.path}: {each.message} ({each.fix})" for each in error.problems)
        ) from None
    context.redactor.add(now.secrets, of=definition)
    return _apply_resolved(now.spec, spec)


def _apply_resolved(made: ServerSpec, spec: ServerSpec) -> ServerSpec:
    """Only what may hold a secret is taken over: the rest of `spec` may have been changed since."""
    if isinstance(spec, StdioSpec) and isinstance(made, StdioSpec):
        return attrs.evolve(spec, command=made.command, args=made.args, env=made.env, unresolved=None)
    assert isinstance(spec, RemoteSpec)
    if not isinstance(made, RemoteSpec) or made.kind != spec.kind:
        raise SecretUnavailable(
            "its URL is of another kind than was thought (write the `type` into its definition)"
        )
    return attrs.evolve(spec, url=made.url, headers=made.headers, unresolved=None)


async def _resolve_reference(
    reference: SecretReference, context: SupervisorContext
) -> str | UnavailableSecret:
    with trio.move_on_after(SECRET_TIMEOUT):
        if reference.kind == "cmd":
            return await _run_command(reference.arguments, context)
        look = partial(fetch_secret, reference, context.environ)
        return await trio.to_thread.run_sync(
            look, abandon_on_cancel=True
        )  # a dead network disk never answers
    what = "the command" if reference.kind == "cmd" else "the file"
    message = f"{what} {shorten(reference.arguments[0], 80)} gave no secret within {SECRET_TIMEOUT:g} s"
    return UnavailableSecret(message, "try it in a shell")


async def _run_command(argv: tuple[str, ...], context: SupervisorContext) -> str | UnavailableSecret:
    """What it prints. No shell; its whole session is ended with it, whatever happens."""
    what = f"the command {shorten(argv[0], 80)}"
    environ = {**context.environ, INSTANCE_VARIABLE: f"{context.instance}.command"}
    try:
        process = await trio.lowlevel.open_process(
            list(argv),
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
    context.secret_command_pids.add(process.pid)
    assert process.stdout is not None
    assert process.stderr is not None
    stdout = bytearray()
    stderr = bytearray()
    try:
        async with process.stdout, process.stderr, trio.open_nursery() as nursery:
            nursery.start_soon(_read_up_to, process.stderr, stderr, _MAX_STDERR)
            nursery.start_soon(_read_up_to, process.stdout, stdout, MAX_SECRET_SIZE + 1)
            await process.wait()
            _end_session(process.pid)  # what it left behind may hold its output open
            nursery.cancel_scope.deadline = trio.current_time() + _DRAIN_TIMEOUT
    finally:
        _end_session(process.pid)
        with trio.CancelScope(shield=True):  # SIGKILL: soon
            await process.wait()
        context.secret_command_pids.discard(process.pid)
    if process.returncode:
        last = shorten(
            (stderr.decode("utf-8", "replace").strip().splitlines() or ["it said nothing"])[-1], 200
        )
        return UnavailableSecret(f"{what} failed with {process.returncode}: {last}", "try it in a shell")
    return decode_secret(bytes(stdout), what)


def _end_session(leader: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


async def _read_up_to(stream: trio.abc.ReceiveStream, into: bytearray, most: int) -> None:
    """Read to its end, and keep the first bytes."""
    with suppress(trio.ClosedResourceError):
        async for portion in stream:
            into += portion[: most - len(into)]
