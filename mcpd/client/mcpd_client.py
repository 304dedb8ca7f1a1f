"""The client: list the tools, resources and prompts of all servers, and use them."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, overload

import attrs

from mcpd.client.connection import Connection
from mcpd.client.errors import NOT_SENT, InvalidCall, ToolFailed, ToolResult, Unknown
from mcpd.client.handlers import ONE_SERVER
from mcpd.client.link import Progress
from mcpd.model.api import MissingServer
from mcpd.model.status import ServerState
from mcpd.model.text import similar_names
from mcpd.model.tool_names import ClientStyle, OwnedName, public_names, tools_named

if TYPE_CHECKING:
    from mcpd.client.status_types import DaemonStatus

log = logging.getLogger("mcpd.client")
T = TypeVar("T")
PERMISSIVE: Mapping[str, Any] = {"type": "object", "additionalProperties": True}
"""Accepts any arguments; the server validates them."""


class CallOptions(TypedDict, total=False):
    """The options of `Mcp.call`, for functions that pass them on: `**options: Unpack[CallOptions]`."""

    timeout: float | None
    progress: Progress | None


class Mcp:
    """A connection to the daemon. Any number of tasks may use it; calls run concurrently."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        """Gives access to all other methods of the control API: `mcp.connection.request`."""
        self._named: dict[str, OwnedName] = {}
        """Name → tool, for the names that were passed to `call`."""
        self._reported: set[str] = set()
        """The servers whose absence was logged."""

    async def list_tools(
        self, *, server: str | None = None, prefix: str = "", match: str = "*"
    ) -> ItemList[Tool]:
        """Return the tools of all servers, or of one.

        The names are unique in the list and valid for model APIs: at most 64 characters of `A-Za-z0-9_-`.
        With `prefix="fs"`, the tool `read_file` is named `fs_read_file` instead of `SERVER__read_file`, and
        `fs_SERVER__read_file` if several servers have it. `match` selects tools by the server's own name for
        them, with the wildcards `*` and `?`.

        The daemon answers from its cache, which follows the servers' notifications, so this is cheap. Servers
        that have never worked so far are not in it: they are in `missing` of the list, and logged as a
        warning once. Raises Unknown if `server` is not defined or the profile excludes it, and NotReady if
        its tools are not known.
        """
        answer = await self._list("tools", server)
        entries = [e for e in answer["tools"] if fnmatchcase(str(e["name"]), match)]
        style = ClientStyle.PLAIN if prefix else ClientStyle.UNDERSCORES
        owned = [(str(entry["server"]), str(entry["name"])) for entry in entries]
        names = {pair: name for name, pair in public_names(style, owned, prefix).items()}
        tools = (tool_from_definition(e, names[pair], self) for e, pair in zip(entries, owned, strict=True))
        return ItemList(tools, _missing(answer))

    async def find_tools(self, query: str, *, limit: int = 10) -> ItemList[Tool]:
        """Return the tools of all servers that fit a few words, the best first, and at most `limit`.

        The names are those of `list_tools`. Empty if no tool contains any of the words.
        """
        answer = await self.connection.request("mcpd/find_tools", {"query": query, "limit": limit})
        entries = answer["tools"]
        owned = [(str(entry["server"]), str(entry["name"])) for entry in entries]
        names = {pair: name for name, pair in public_names(ClientStyle.UNDERSCORES, owned).items()}
        tools = (tool_from_definition(e, names[pair], self) for e, pair in zip(entries, owned, strict=True))
        return ItemList(tools, ())

    async def _list(self, kind: str, server: str | None) -> Mapping[str, Any]:
        """Return what a server, or all of them, have of a kind. Logs once which servers are missing."""
        answer: Mapping[str, Any] = await self.connection.request(
            f"mcpd/{kind}", {} if server is None else {"server": server}
        )
        missing = _missing(answer)
        for each in missing:
            if each.server not in self._reported:
                log.warning("the %s of %s are not listed: %s", kind, each.server, each.reason)
        if server is None:
            self._reported = {each.server for each in missing}
        return answer

    async def list_resources(self, *, server: str | None = None) -> ItemList[Resource]:
        """Return the resources of all servers, or of one. Templates: `list_resource_templates`."""
        answer = await self._list("resources", server)
        return ItemList((_resource(entry, "uri", self) for entry in answer["resources"]), _missing(answer))

    async def list_resource_templates(self, *, server: str | None = None) -> ItemList[Resource]:
        """Return the resource templates of all servers, or of one. Fill in `uri`, then use `Mcp.read`."""
        answer = await self._list("resources", server)
        found = (_resource(entry, "uriTemplate", self) for entry in answer["resource_templates"])
        return ItemList(found, _missing(answer))

    async def list_prompts(self, *, server: str | None = None) -> ItemList[Prompt]:
        """Return the prompts of all servers, or of one."""
        answer = await self._list("prompts", server)
        found = (
            Prompt(
                server=str(entry["server"]),
                name=str(entry["name"]),
                title=str(entry.get("title") or ""),
                description=str(entry.get("description") or ""),
                arguments=tuple(a for a in entry.get("arguments") or () if isinstance(a, dict)),
                definition=_without_ours(entry),
                mcp=self,
            )
            for entry in answer["prompts"]
        )
        return ItemList(found, _missing(answer))

    @overload
    async def call(
        self,
        server: str,
        tool: str,
        arguments: Mapping[str, object] | None = None,
        *,
        timeout: float | None = None,
        progress: Progress | None = None,
    ) -> ToolResult: ...

    @overload
    async def call(
        self,
        server: str,
        tool: Mapping[str, object] | None = None,
        *,
        arguments: Mapping[str, object] | None = None,
        timeout: float | None = None,
        progress: Progress | None = None,
    ) -> ToolResult: ...

    async def call(
        self,
        server: str,
        tool: str | Mapping[str, object] | None = None,
        arguments: Mapping[str, object] | None = None,
        *,
        timeout: float | None = None,  # enforced by the daemon
        progress: Progress | None = None,
    ) -> ToolResult:
        """Call a tool of a server. Cancelling this call cancels the tool call.

        `call("time", "get_current_time", {…})` and `call("time__get_current_time", {…})` do the same. A name
        with the server in it is looked up in the lists of all servers when it is first used.

        `timeout` replaces the configured seconds without a response or progress, which begin when the call is
        sent to the server. Raises ToolFailed if the tool reports an error, and the other ClientErrors:
        InvalidCall for an argument that JSON cannot express, such as NaN. An argument of a type that JSON
        does not have raises TypeError. An exception that `progress` raises cancels the call and is raised
        here.

        Calls that may have run are never repeated.
        """
        if not isinstance(tool, str):
            if tool is not None and arguments is not None:
                raise TypeError("call() takes the arguments of the tool only once")
            name, arguments = server, arguments if tool is None else tool
            try:
                server, tool = self._named.get(name) or await self._find_tool(name)
                return await self.call(server, tool, arguments, timeout=timeout, progress=progress)
            except Unknown:  # the name may mean another tool next time
                self._named.pop(name, None)
                raise
        request: dict[str, object] = {"server": server, "tool": tool, "arguments": _mapping(arguments)}
        result = ToolResult.of(await self.connection.request("mcpd/call", request, progress, timeout))
        if not result.success:
            text = result.error or result.output or "the tool failed"
            raise ToolFailed("; ".join((f"{tool}@{server}: {text}", *result.warnings)), result)
        return result

    async def _find_tool(self, name: str) -> OwnedName:
        """Return the tool with a name that contains its server. Raises Unknown, and InvalidCall if several
        tools may be meant.
        """
        listed = (await self.connection.request("mcpd/tools"))["tools"]
        owned = [(str(entry["server"]), str(entry["name"])) for entry in listed]
        found = tools_named(name, owned)
        if not found:  # it may be a tool of a server that is not listed, because it has not started yet
            status = await self.connection.request("mcpd/status")
            found = tools_named(name, owned, [str(each["name"]) for each in status["servers"]])
        if len(found) == 1:
            self._named[name] = found[0]
            return found[0]
        if found:
            choices = " or ".join(f"call({server!r}, {tool!r}, …)" for server, tool in found[:5])
            raise InvalidCall(
                f"{name!r} may mean several tools; use {choices}", "invalid_arguments", NOT_SENT
            )
        similar = similar_names(name, public_names(ClientStyle.UNDERSCORES, owned))
        advice = f"did you mean {' or '.join(similar)}?" if similar else "list_tools() returns all names"
        text = f"no tool has the name {name!r}, which must contain its server; {advice}"
        raise Unknown(text, "unknown_tool", NOT_SENT)

    async def read(self, server: str, uri: str) -> list[Mapping[str, Any]]:
        """Return the contents of a resource, as sent by the server."""
        answer = await self.connection.request("mcpd/read", {"server": server, "uri": uri})
        return list(answer["contents"])

    async def prompt(
        self, server: str, prompt: str, arguments: Mapping[str, str] | None = None
    ) -> list[Mapping[str, Any]]:
        """Return the messages of a prompt."""
        request = {"server": server, "prompt": prompt, "arguments": dict(arguments or {})}
        return list((await self.connection.request("mcpd/prompt", request))["messages"])

    async def subscribe(self, server: str, uri: str) -> None:
        """Have `resource_updated` of the handlers called when this resource changes.

        A subscription lasts until `unsubscribe`, also when the daemon restarts. Then it is called, too,
        because the resource may have changed meanwhile. Raises ServerRefused if the server does not offer
        subscriptions.
        """
        await self.connection.subscribe(f"{ONE_SERVER}{server}/{uri}")

    async def unsubscribe(self, server: str, uri: str) -> None:
        await self.connection.unsubscribe(f"{ONE_SERVER}{server}/{uri}")

    async def status(self) -> DaemonStatus:
        """Return the same object as `mcpctl status --json`."""
        answer: DaemonStatus = await self.connection.request("mcpd/status")
        return answer

    async def close(self) -> None:
        """Close the connection: that of `open`, or of a block before its end. See `Connection.close`."""
        await self.connection.close()


class ItemList(list[T]):
    """What the servers have of a kind: a list."""

    def __init__(self, items: Iterable[T] = (), missing: tuple[MissingServer, ...] = ()) -> None:
        super().__init__(items)
        self.missing = missing
        """The enabled servers that are not in the list; empty if one server was asked for."""


@attrs.frozen(kw_only=True, eq=False)
class ToolFacts:
    """What is known of a tool, whether it is called with or without `await`."""

    name: str
    """Unique in its list and valid for model APIs: `server__tool`, or as `list_tools` says."""
    server: str
    tool: str
    """The name that the server uses."""
    title: str
    description: str
    """Begins with the name of the server, for models that see the tools of several servers."""
    schema: Mapping[str, Any] = attrs.field(repr=False)
    """The JSON Schema of its arguments, unchanged."""
    output_schema: Mapping[str, Any] | None = attrs.field(repr=False)
    annotations: Mapping[str, Any] = attrs.field(repr=False)
    definition: Mapping[str, Any] = attrs.field(repr=False)
    """The server's complete entry."""
    qualified_name: str = ""
    """The name in `mcpctl`, such as `read_file@fs`."""
    tags: tuple[str, ...] = ()
    """The tool's tags in the server's definition in mcpd."""

    def converted(self, convert: Callable[[Mapping[str, Any]], T]) -> T:
        """Return `convert(schema)`, for example the tool type of an agent framework.

        If `convert` raises, warn and return `convert(PERMISSIVE)`, so that the tool can still be called.
        """
        try:
            return convert(self.schema)
        except Exception as error:
            warnings.warn(
                f"{self.name}: its schema cannot be converted ({error}); accepting any object", stacklevel=2
            )
            return convert(PERMISSIVE)


@attrs.frozen(kw_only=True, eq=False)
class Tool(ToolFacts):
    """A tool of one server."""

    _mcp: Mcp = attrs.field(repr=False)

    async def execute(
        self,
        arguments: Mapping[str, object] | None = None,
        /,
        *,
        timeout: float | None = None,  # enforced by the daemon
        progress: Progress | None = None,
        **named: object,
    ) -> ToolResult:
        """Call the tool with arguments as a mapping or keywords. See `Mcp.call`.

        `timeout` and `progress` are options of the call. If the tool has an argument of that name, pass its
        arguments as a mapping. Otherwise the keyword would be ambiguous and raises TypeError.
        """
        if arguments is None:
            self._refuse_ambiguous("timeout", timeout)
            self._refuse_ambiguous("progress", progress)
        given = {**_mapping(arguments), **named}
        return await self._mcp.call(self.server, self.tool, given, timeout=timeout, progress=progress)

    def _refuse_ambiguous(self, option: str, value: object) -> None:
        properties = self.schema.get("properties")
        if value is not None and isinstance(properties, Mapping) and option in properties:
            raise TypeError(
                f"{self.name} has an argument named {option!r}, which is also an option of execute(): "
                f"pass the arguments as a mapping, such as execute({{{option!r}: {value!r}}})"
            )


@attrs.frozen(kw_only=True, eq=False)
class ResourceFacts:
    """What is known of a resource, or of a template of resources."""

    server: str
    uri: str
    """For a template, with `{placeholders}` (RFC 6570)."""
    name: str
    title: str
    description: str
    mime_type: str
    definition: Mapping[str, Any] = attrs.field(repr=False)
    """The server's complete entry."""


@attrs.frozen(kw_only=True, eq=False)
class Resource(ResourceFacts):
    """A resource of one server, or a template of resources."""

    _mcp: Mcp = attrs.field(repr=False)

    async def read(self) -> list[Mapping[str, Any]]:
        """Return the contents, as sent by the server."""
        return await self._mcp.read(self.server, self.uri)


@attrs.frozen(kw_only=True, eq=False)
class PromptFacts:
    """What is known of a prompt."""

    server: str
    name: str
    title: str
    description: str
    arguments: tuple[Mapping[str, Any], ...]
    """What it can be filled in with: objects with `name`, `description` and `required`."""
    definition: Mapping[str, Any] = attrs.field(repr=False)
    """The server's complete entry."""


@attrs.frozen(kw_only=True, eq=False)
class Prompt(PromptFacts):
    """A prompt of one server."""

    _mcp: Mcp = attrs.field(repr=False)

    async def get(self, arguments: Mapping[str, str] | None = None) -> list[Mapping[str, Any]]:
        """Return the messages of the prompt."""
        return await self._mcp.prompt(self.server, self.name, arguments)


def tool_from_definition(definition: Mapping[str, Any], name: str, mcp: Mcp) -> Tool:
    """Create a Tool from an entry of `mcpd/tools`."""
    server, schema, output = (
        str(definition["server"]),
        definition.get("inputSchema"),
        definition.get("outputSchema"),
    )
    annotations, tags = definition.get("annotations"), definition.get("tags")
    return Tool(
        name=name,
        server=server,
        tool=str(definition["name"]),
        title=str(definition.get("title") or ""),
        description=f"[{server}] {definition.get('description') or ''}".rstrip(),
        schema=schema if isinstance(schema, dict) else PERMISSIVE,
        output_schema=output if isinstance(output, dict) else None,
        annotations=annotations if isinstance(annotations, dict) else {},
        definition=_without_ours(definition),
        mcp=mcp,
        qualified_name=str(definition.get("qualified_name") or ""),
        tags=tuple(map(str, tags)) if isinstance(tags, list) else (),
    )


def _resource(entry: Mapping[str, Any], key: str, mcp: Mcp) -> Resource:
    return Resource(
        server=str(entry["server"]),
        uri=str(entry[key]),
        name=str(entry.get("name") or ""),
        title=str(entry.get("title") or ""),
        description=str(entry.get("description") or ""),
        mime_type=str(entry.get("mimeType") or ""),
        definition=_without_ours(entry),
        mcp=mcp,
    )


def _mapping(arguments: Mapping[str, object] | None) -> dict[str, object]:
    if arguments is not None and not isinstance(arguments, Mapping):
        raise TypeError(
            f"the arguments of a tool are a mapping, and not {type(arguments).__name__}; "
            "json.loads() makes one of what a model returns as text"
        )
    return dict(arguments or {})


def _missing(answer: Mapping[str, Any]) -> tuple[MissingServer, ...]:
    return tuple(
        MissingServer(server=each["server"], state=ServerState(each["state"]), reason=each["reason"])
        for each in answer.get("missing", ())
    )


def _without_ours(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the server's own object, without the members that mcpd adds."""
    return {
        key: value for key, value in entry.items() if key not in ("server", "qualified_name", "signature")
    }
