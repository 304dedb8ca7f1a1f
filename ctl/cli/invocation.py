"""CliContext: one run of mcpctl, with its options, its connection to the daemon and its output."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from ctl.cli.errors import CtlError, DaemonError, DaemonGone, DaemonUnreachable, UsageError
from ctl.cli.json_text import objects
from ctl.cli.output import Output
from ctl.daemon.client import (
    DaemonClient,
    DaemonReply,
    Json,
    NotificationCallback,
    ReplyCallback,
    socket_path,
    with_effect,
)

TYPE_CHECKING = False  # type checkers know the name; importing `typing` for it costs 3 ms on every run
if TYPE_CHECKING:
    from typing import Any

    from ctl.api_types import Call, Reply, Stream


class CliContext:
    """Created once per run, before any option is parsed; options then set its attributes.

    Connects on the first request and keeps that connection. Close it at the end.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.may_start = environ.get("MCPD_NO_START", "") in ("", "0")
        self.out = Output(environ)
        self.json_option = False
        """JSON was asked for on the command line, rather than in the environment."""
        self.has_called = False
        """Whether a tool has run, so that a later error must say that."""
        self._environ = environ
        self._client: DaemonClient | None = None

    @property
    def socket_option(self) -> str:
        """The value of `--socket`; empty for the default socket."""
        return self.out.socket

    @socket_option.setter
    def socket_option(self, path: str) -> None:
        self.out.socket = path

    @property
    def host(self) -> str:
        """The value of `--host`; empty for the daemon of this machine."""
        return self.out.host

    @property
    def elsewhere(self) -> str:
        """The value of `--host` or `--url`; empty for the daemon of this machine."""
        return self.out.host or self.out.url

    @property
    def socket(self) -> str:
        """The absolute path of this machine's socket. Raises DaemonUnreachable if there is none."""
        return os.path.abspath(self.socket_option) if self.socket_option else socket_path(self._environ)

    def trace_context(self) -> dict[str, str]:
        """Return the W3C trace context of this command as members of `_meta` (SEP-414), or nothing.

        Read from the variables that OpenTelemetry sets for child processes: TRACEPARENT, TRACESTATE, BAGGAGE.
        """
        names = ("traceparent", "tracestate", "baggage")
        found = {name: value for name in names if (value := self._environ.get(name.upper()))}
        return found if "traceparent" in found else {}

    def client(self) -> DaemonClient:
        """Return the connection. Starts the daemon first if it is not running and may be started."""
        if self._client is None:
            self._client = self.connect()
        return self._client

    def connect(self, *, with_login_path: bool = False) -> DaemonClient:
        """Return a new connection, as `client` does. `with_login_path` as in `ensure_daemon`."""
        if self.out.url:
            return self._connect_url()
        if self.host:
            return self._connect_host()
        path = self.socket
        try:
            return DaemonClient(path)
        except DaemonUnreachable:
            if not self.may_start:
                raise
            from ctl.daemon.process import ensure_daemon

            ensure_daemon(path, with_login_path=with_login_path)
            return DaemonClient(path)

    def _connect_host(self) -> DaemonClient:
        from ctl.daemon.ssh import RemoteClient

        client = RemoteClient(self.host, self.socket_option, may_start=self.may_start)
        if client.difference and self._client is None and not self.out.json:
            self.out.message(f"note: {client.difference}")
        return client

    def _connect_url(self) -> DaemonClient:
        from ctl.daemon.network import NetworkClient, checked_origin

        if self.host or self.socket_option:
            raise UsageError("--url already says which mcpd to use", hint="leave out --host and --socket")
        file = self.out.token_file or self._environ.get("MCPD_TOKEN_FILE", "")
        return NetworkClient(checked_origin(self.out.url), file)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    @property
    def call(self) -> Call:
        """`DaemonClient.call`. Errors about unknown names come with suggestions."""
        return self._request

    def _request(self, method: str, params: Json | None = None, **options: Any) -> DaemonReply:  # noqa: ANN401
        try:
            client = self.client()
        except DaemonUnreachable as error:
            with_effect(error, method, sent=False)
            raise
        try:
            with self._finding_cause():
                return client.request(method, params, **options)
        except DaemonError as error:
            self._add_suggestions(error, params or {})
            raise

    def call_all(
        self,
        method: str,
        params: Sequence[Json],
        *,
        timeout: float,
        on_note: NotificationCallback | None = None,
        on_reply: ReplyCallback | None = None,
    ) -> list[DaemonReply | DaemonError]:
        """Send the same request for several servers concurrently. Returns answers and errors in order.

        With `on_note`, the events of these servers are passed to it meanwhile.
        """
        client = self.client()
        if on_note is not None:
            client.subscribe([str(each["server"]) for each in params])
        requests = [(method, each) for each in params]
        with self._finding_cause():
            outcomes = client.call_all(requests, timeout=timeout, on_note=on_note, on_reply=on_reply)
        for outcome, asked in zip(outcomes, params, strict=True):
            if isinstance(outcome, DaemonError):
                self._add_suggestions(outcome, asked)
        return outcomes

    @property
    def stream(self) -> Stream:
        """`DaemonClient.stream`. Errors about unknown names come with suggestions."""
        return self._stream

    def _stream(
        self,
        method: str,
        params: Json | None = None,
        **options: Any,  # noqa: ANN401
    ) -> Iterator[DaemonReply | None]:
        try:
            with self._finding_cause():
                yield from self.client().notifications(method, params, **options)
        except DaemonError as error:
            self._add_suggestions(error, params or {})
            raise

    @contextmanager
    def _finding_cause(self) -> Iterator[None]:
        """Raise the cause for a connection that was closed because the service, which systemd started for
        it, has failed.
        """
        try:
            yield
        except DaemonGone:
            from ctl.daemon.process import service_error

            if (cause := service_error(self.socket)) is not None:
                raise cause from None
            raise

    def show_json(self, reply: Reply[object]) -> bool:
        """With `--json`, print the daemon's result byte for byte and return True."""
        if self.out.json:
            self.out.json_document(reply.text)
        return self.out.json

    def _add_suggestions(self, error: DaemonError, params: Json) -> None:
        """Add the closest names to an error about an unknown name, or the next step of a server."""
        with suppress(CtlError):  # a suggestion is not worth a second error
            if error.code == "not_ready" and error.details.get("state") in ("failed", "needs-auth"):
                self._add_next_step(error)
            elif error.code in _NAME_SOURCES and not error.hint:
                self._suggest_names(error, params, *_NAME_SOURCES[error.code])

    def _add_next_step(self, error: DaemonError) -> None:
        """Add the next step of the error's server, if its status still explains the error."""
        from ctl.explain.next_steps import next_step

        detail = self.client().request("mcpd/server", {"server": error.details["server"]}, timeout=5.0).value
        if detail["server"]["status"] == error.details["state"]:
            error.hint = next_step(detail)

    def _suggest_names(
        self, error: DaemonError, params: Json, command: str, method: str, member: str, key: str, param: str
    ) -> None:
        """Add the known names that are most like the unknown one, or the command that lists them."""
        import difflib

        of_server = param == "server"
        wanted = str((of_server and error.details.get("server")) or params.get(param) or "")
        asked = {} if of_server else {"server": params.get("server")}
        answer: Json = self.client().request(method, asked, timeout=5.0).value
        names = [str(entry[key]) for entry in objects(answer.get(member)) if key in entry]
        near = difflib.get_close_matches(wanted, names, n=3, cutoff=0.6)
        near = near or [name for name in names if wanted and wanted.lower() in name.lower()][:3]
        if near:
            error.details["suggestions"] = near
            if "did you mean" not in error.message.lower():
                error.hint = f"did you mean {' or '.join(near)}?"
        elif of_server:
            error.hint = "mcpctl status lists the servers"
        else:
            error.hint = f"{command} {params.get('server', '')}".rstrip()


_NAME_SOURCES = {
    "unknown_server": ("mcpctl status", "mcpd/status", "servers", "name", "server"),
    "unknown_tool": ("mcpctl list-tools", "mcpd/tools", "tools", "name", "tool"),
    "unknown_prompt": ("mcpctl prompt", "mcpd/prompts", "prompts", "name", "prompt"),
    "unknown_resource": ("mcpctl read", "mcpd/resources", "resources", "uri", "uri"),
}
"""By error code: the command that lists the names; the method, the member of its answer and of each entry;
and the param with the unknown name."""
