"""Session: one run of mcpctl. Its options, its way to the daemon, its way out."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from ctl.daemon_client import DaemonClient, DaemonReply, Json, NotificationCallback, socket_path
from ctl.errors import CtlError, DaemonError, DaemonUnreachable
from ctl.output import Output


class CliContext:
    """Made once per run, before any option is read; options then set its attributes.

    Connects on the first request and keeps that connection. `close` it at the end.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.socket_option = ""
        """From `--socket`; empty: the default one."""
        self.may_start = environ.get("MCPD_NO_START", "") in ("", "0")
        self.out = Output(environ)
        self.out.set_format(environ.get("MCPCTL_OUTPUT", ""))
        self._environ = environ
        self._client: DaemonClient | None = None

    @property
    def socket(self) -> str:
        """The absolute path of the daemon's socket. Raises DaemonUnreachable when there can be none."""
        return os.path.abspath(self.socket_option) if self.socket_option else socket_path(self._environ)

    def trace_context(self) -> dict[str, str]:
        """The trace that this command is a part of, as `_meta` carries it (SEP-414); empty for none.

        Read from where OpenTelemetry puts it for a child process: `TRACEPARENT`, `TRACESTATE`, `BAGGAGE`.
        """
        names = ("traceparent", "tracestate", "baggage")
        found = {name: value for name in names if (value := self._environ.get(name.upper()))}
        return found if "traceparent" in found else {}

    def client(self) -> DaemonClient:
        """The connection, after starting the daemon if nobody answers and that is allowed."""
        if self._client is None:
            path = self.socket
            try:
                self._client = DaemonClient(path)
            except DaemonUnreachable:
                if not self.may_start:
                    raise
                from ctl.autostart import ensure_daemon

                ensure_daemon(path)
                self._client = DaemonClient(path)
        return self._client

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def call(
        self,
        method: str,
        params: Json | None = None,
        *,
        timeout: float | None = 60.0,
        on_note: NotificationCallback | None = None,
    ) -> DaemonReply:
        """`LocalClient.call`, with suggestions when a name is unknown."""
        try:
            return self.client().call(method, params, timeout=timeout, on_note=on_note)
        except DaemonError as error:
            self._add_suggestions(error, params or {})
            raise

    def call_all(self, method: str, params: list[Json], *, timeout: float) -> list[DaemonReply | DaemonError]:
        """The same request for several servers at once; answers in their order, errors among them."""
        outcomes = self.client().call_all([(method, each) for each in params], timeout=timeout)
        for outcome, asked in zip(outcomes, params, strict=True):
            if isinstance(outcome, DaemonError):
                self._add_suggestions(outcome, asked)
        return outcomes

    def stream(
        self, method: str, params: Json, *, tick: float | None = None, until: float | None = None
    ) -> Iterator[DaemonReply | None]:
        """`LocalClient.stream`, with suggestions when a name is unknown."""
        try:
            yield from self.client().stream(method, params, tick=tick, until=until)
        except DaemonError as error:
            self._add_suggestions(error, params)
            raise

    def show_json(self, reply: DaemonReply) -> bool:
        """Under `--json`, print the daemon's result as it came and say True."""
        if self.out.json:
            self.out.json_document(reply.text)
        return self.out.json

    def _add_suggestions(self, error: DaemonError, params: Json) -> None:
        """Add the nearest names to an error about an unknown one."""
        if error.code not in _NAME_SOURCES or error.hint:
            return
        try:
            names, wanted = self._candidates(error, params)
        except CtlError:
            return  # a suggestion is not worth a second error
        import difflib

        near = (
            difflib.get_close_matches(wanted, names, n=3, cutoff=0.6)
            or [name for name in names if wanted and wanted.lower() in name.lower()][:3]
        )
        if near:
            error.facts["suggestions"] = near
            if "did you mean" not in error.message.lower():
                error.hint = f"did you mean {' or '.join(near)}?"
        elif error.code == "unknown_server":
            error.hint = "mcpctl status lists the servers"
        else:
            error.hint = f"{_NAME_SOURCES[error.code][0]} {params.get('server', '')}".rstrip()

    def _candidates(self, error: DaemonError, params: Json) -> tuple[list[str], str]:
        if error.code != "unknown_server":
            _, method, member, key, asked = _NAME_SOURCES[error.code]
            entries = self.client().call(method, {"server": params.get("server")}, timeout=5.0)
            return _names(entries, member, key), str(params.get(asked, ""))
        servers = self.client().call("mcpd/status", timeout=5.0)
        wanted = error.facts.get("server") or params.get("server") or ""
        return _names(servers, "servers"), str(wanted)


_NAME_SOURCES = {
    "unknown_server": ("mcpctl status", "mcpd/status", "servers", "name", "server"),
    "unknown_tool": ("mcpctl list-tools", "mcpd/tools", "tools", "name", "tool"),
    "unknown_prompt": ("mcpctl prompts", "mcpd/prompts", "prompts", "name", "prompt"),
    "unknown_resource": ("mcpctl resources", "mcpd/resources", "resources", "uri", "uri"),
}
"""By the error: the command that lists what there is, the method and its answer's member, the name of an
entry in there, and the param in which it was asked for."""


def _names(reply: DaemonReply, member: str, key: str = "name") -> list[str]:
    items = reply.value.get(member)
    entries = items if isinstance(items, list) else []
    return [str(item[key]) for item in entries if isinstance(item, dict) and key in item]
