"""`mcpctl list-tools`, `resources`, `read`, `prompts` and `prompt`.

Tools, resources and prompts are the servers' own objects, so nothing about their members is certain.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from pathlib import Path

import click

from ctl.cli.arguments import parse_pairs, split_target
from ctl.cli.completion import prompt_targets, server_names
from ctl.cli.errors import CtlError, UsageError, WriteFailed
from ctl.cli.invocation import CliContext
from ctl.cli.json_text import mapping, objects, strings
from ctl.cli.output import Line, paint, table
from ctl.cli.text import count
from ctl.daemon.client import Json

_MAX_MISSING = 10
"""Servers without tools that are reported one by one."""
_ENUM_WIDTH = 24
"""Characters up to which all values of an enumeration are shown."""


@click.command(
    "list-tools", epilog="Examples:\n\n\b\n  mcpctl list-tools\n  mcpctl list-tools github --schema"
)
@click.argument("server", required=False, shell_complete=server_names)
@click.option("--schema", is_flag=True, help="Show full descriptions and JSON Schemas.")
@click.option(
    "-g",
    "--grep",
    "wanted",
    metavar="TEXT",
    multiple=True,
    help="Only tools with this text in their name or description. May be repeated.",
)
@click.option("--tag", metavar="TAG", help="Only tools with this tag in the definition of their server.")
@click.option("--cost", is_flag=True, help="Show the estimated tokens of each tool, server and surface.")
@click.option("--search", "query", metavar="WORDS", help="The tools that fit these words, the best first.")
@click.pass_obj
def list_tools(
    cli: CliContext,
    server: str | None,
    schema: bool,
    wanted: tuple[str, ...],
    tag: str | None,
    cost: bool,
    query: str | None,
) -> int:
    """List the tools of all servers, or of one.

    ARGUMENTS in brackets are optional. Call a tool with: mcpctl call TOOL@SERVER key=value
    """
    if cost:
        if query or wanted or tag:
            raise UsageError("--cost cannot be combined with --search, --grep or --tag")
        return _show_costs(cli, server)
    if query is not None:
        if server or wanted or tag:
            raise UsageError("--search cannot be combined with SERVER, --grep or --tag")
        return _search_tools(cli, query, schema=schema)
    return _list_tools(cli, server, wanted, schema=schema, tag=tag)


@click.command("search", epilog="Examples:\n\n\b\n  mcpctl search file\n  mcpctl search current time")
@click.argument("wanted", metavar="TEXT...", nargs=-1, required=True)
@click.pass_obj
def search(cli: CliContext, wanted: tuple[str, ...]) -> int:
    """Alias of list-tools --grep."""
    return _list_tools(cli, None, wanted, schema=False)


def _list_tools(
    cli: CliContext,
    server: str | None,
    wanted: Sequence[str],
    *,
    schema: bool,
    tag: str | None = None,
) -> int:
    reply = cli.call("mcpd/tools", {"server": server} if server else {})
    listed = reply.value["tools"]
    tools = [tool for tool in listed if _matches(tool, wanted, tag)]
    if (wanted or tag) and cli.out.json:
        cli.out.json_value({**reply.value, "tools": tools})
        return 0
    if cli.show_json(reply):
        return 0
    if not tools:
        cli.out.message(_no_tools(server, wanted, tag) if listed else _no_tools(server, (), None))
    elif schema:
        for tool in tools:
            _print_details(cli, tool)
    else:
        print_tools(cli, tools)
    if dropped := reply.value.get("dropped"):
        cli.out.message(f"{count(dropped, 'tool')} omitted because of an invalid definition")
    report_missing(cli, objects(reply.value.get("missing")))
    return 0


def _search_tools(cli: CliContext, query: str, *, schema: bool) -> int:
    reply = cli.call("mcpd/find_tools", {"query": query})
    if cli.show_json(reply):
        return 0
    tools = reply.value["tools"]
    if tools and not reply.value["fits"]:
        cli.out.message("nothing fits well; these tools share the most words with the query:")
    if not tools:
        cli.out.message("nothing fits; name the action and its object in other words")
    elif schema:
        for tool in tools:
            _print_details(cli, tool)
    else:
        print_tools(cli, tools)
    return 0


def _show_costs(cli: CliContext, server: str | None) -> int:
    reply = cli.call("mcpd/tool_costs")
    if cli.show_json(reply):
        return 0
    tools = [tool for tool in reply.value["tools"] if server in (None, tool["server"])]
    if server is None:
        totals: dict[str, list[int]] = {}
        for tool in tools:
            totals.setdefault(tool["server"], []).append(tool["tokens"])
        rows = [[name, str(len(all_of)), str(sum(all_of))] for name, all_of in totals.items()]
        rows.sort(key=lambda row: -int(row[2]))
        rows += [
            [f"surface {s['surface']}", str(s["tools"]), str(s["tokens"])] for s in reply.value["surfaces"]
        ]
        cli.out.lines(table(("SERVER", "TOOLS", "TOKENS"), rows, right=(1, 2)))
        cli.out.message("a token is estimated as four bytes; --cost SERVER shows each tool")
        return 0
    tools.sort(key=lambda tool: -int(tool["tokens"]))
    if tools:
        each = [[str(tool["name"]), str(tool["tokens"])] for tool in tools]
        cli.out.lines(table(("TOOL", "TOKENS"), each, right=(1,)))
    else:
        cli.out.message(_no_tools(server, (), None))
    return 0


def _no_tools(server: str | None, wanted: Sequence[str], tag: str | None) -> str:
    if tag is not None:
        return f"no tool{_on(server)} has the tag {tag!r}"
    if wanted:
        return f"no tool{_on(server)} contains {' and '.join(map(repr, wanted))}"
    return f"no tools{_on(server)}; mcpctl status shows the state of the servers"


def _print_details(cli: CliContext, tool: Json) -> None:
    title = f"  {tool['title']}" if tool.get("title") else ""
    cli.out.line(paint(_target(tool), "bold"), title)
    cli.out.lines([f"  {line}"] for line in str(tool.get("description") or "").splitlines())
    annotations = mapping(tool.get("annotations")).items()
    hints = [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in annotations if key != "title"]
    if hints:
        cli.out.line(paint("  annotations: ", "dim"), ", ".join(hints))
    for member in ("inputSchema", "outputSchema"):
        if member in tool:
            cli.out.line(paint(f"  {member}:", "dim"))
            text = json.dumps(tool[member], indent=2, ensure_ascii=False)
            cli.out.block("\n".join(f"  {line}" for line in text.splitlines()))
    cli.out.line()


def report_missing(cli: CliContext, missing: Sequence[Json]) -> None:
    """Say on stderr which servers are not in the list, why, and what to do."""
    for each in missing[:_MAX_MISSING]:
        name = each.get("server")
        command = "list-tools" if each.get("state") == "idle" else "why"
        cli.out.message(f"not listed: {each.get('reason')}   (mcpctl {command} {name})")
    if (more := len(missing) - _MAX_MISSING) > 0:
        cli.out.message(f"not listed: {count(more, 'more server')}   (mcpctl status)")


def print_tools(cli: CliContext, tools: Sequence[Json], *, with_server: bool = True) -> None:
    """Print a table of tools with their arguments."""
    rows: list[Line] = [
        [
            _target(tool) if with_server else str(tool.get("name", "?")),
            argument_list(tool),
            _description(tool),
        ]
        for tool in tools
    ]
    header = ("TOOL", "ARGUMENTS", "DESCRIPTION")
    cli.out.lines(table(header, rows, fit=cli.out.columns, squeeze=(1,)))


def _matches(tool: Json, wanted: Sequence[str], tag: str | None) -> bool:
    if tag is not None and tag not in strings(tool.get("tags")):
        return False
    members = ("name", "server", "title", "description")
    text = " ".join((*(str(tool.get(key) or "") for key in members), _target(tool))).lower()
    return all(each.lower() in text for each in wanted)


def _on(server: str | None) -> str:
    return f" on {server}" if server else ""


def _target(entry: Json) -> str:
    """Return the name to call a tool by, in the style of `settings.toolNames`."""
    if name := entry.get("qualified_name"):
        return str(name)
    return f"{entry.get('name', '?')}@{entry.get('server', '?')}"


def _description(entry: Json) -> str:
    return str(entry.get("description") or entry.get("title") or "-")


def argument_list(tool: Json) -> str:
    """Return a tool's arguments with their types: required ones first, the others in brackets."""
    schema = mapping(tool.get("inputSchema"))
    required, shapes = strings(schema.get("required")), mapping(schema.get("properties"))
    shown = {name: f"{name}{_type(shape)}" for name, shape in shapes.items()}
    return _bracketed(
        [text for name, text in shown.items() if name in required],
        [text for name, text in shown.items() if name not in required],
    )


def _type(schema: object) -> str:
    """Return `:number`, `:a|b` for the values of a short enumeration, or nothing for text."""
    shape = mapping(schema)
    values = shape.get("enum")
    if isinstance(values, list) and len(text := "|".join(map(str, values))) <= _ENUM_WIDTH:
        return f":{text}"
    kind = shape.get("type")
    return f":{kind}" if isinstance(kind, str) and kind != "string" else ""


def _bracketed(required: list[str], optional: list[str]) -> str:
    return " ".join([*required, *(f"[{name}]" for name in optional)]) or "-"


@click.command(epilog="Examples:\n\n\b\n  mcpctl resources\n  mcpctl resources everything --json")
@click.argument("server", required=False, shell_complete=server_names)
@click.pass_obj
def resources(cli: CliContext, server: str | None) -> int:
    """List the resources of all servers, or of one."""
    return _list_resources(cli, server)


def _list_resources(cli: CliContext, server: str | None) -> int:
    reply = cli.call("mcpd/resources", {"server": server} if server else {})
    if cli.show_json(reply):
        return 0
    entries = [(entry, entry.get("uri")) for entry in reply.value["resources"]]
    entries += [(entry, entry.get("uriTemplate")) for entry in reply.value["resource_templates"]]
    rows: list[Line] = [
        [
            str(entry.get("server", "?")),
            str(uri or "?"),
            str(entry.get("mimeType") or "-"),
            " - ".join(str(entry[key]) for key in ("name", "description") if entry.get(key)) or "-",
        ]
        for entry, uri in entries
    ]
    header = ("SERVER", "URI", "TYPE", "NAME")
    if rows:
        cli.out.lines(table(header, rows, fit=cli.out.columns, drop=(2,)))
    else:
        cli.out.message(f"no resources{_on(server)}")
    report_missing(cli, objects(reply.value.get("missing")))
    return 0


@click.command(
    epilog="Examples:\n\n\b\n  mcpctl read\n  mcpctl read everything demo://resource/static/document/features.md\n"
    "  mcpctl read photos img://7 --output 7.png"
)
@click.argument("server", required=False, shell_complete=server_names)
@click.argument("uri", required=False)
@click.option("-o", "--output", metavar="FILE", help="Write the content to FILE instead of stdout.")
@click.pass_obj
def read(cli: CliContext, server: str | None, uri: str | None, output: str | None) -> int:
    """Read a resource, or list all resources.

    Name it as SERVER URI, or as URI@SERVER. Without a URI, lists the resources of SERVER or of all servers.
    """
    if server is None or (uri is None and ":" not in server):
        return _list_resources(cli, server)
    if uri is None:
        uri, _, server = server.rpartition("@")
        if not uri or not server:
            raise UsageError("of which server?", hint="write SERVER URI; mcpctl read lists the resources")
    reply = cli.call("mcpd/read", {"server": server, "uri": uri}, timeout=None)
    if cli.show_json(reply):
        return 0
    contents = objects(reply.value.get("contents"))
    if output is not None:
        try:
            Path(output).write_bytes(b"".join(_bytes(content) for content in contents))
        except OSError as error:
            raise WriteFailed(f"cannot write {output}: {error.strerror}") from None
        cli.out.message(f"wrote {output}")
        return 0
    for content in contents:
        if isinstance(text := content.get("text"), str):
            cli.out.block(text)
        elif cli.out.tty:
            kind, size = content.get("mimeType", "binary"), len(_bytes(content))
            cli.out.message(f"[{kind}, {size} bytes: not shown on a terminal; use --output FILE or a pipe]")
        else:
            cli.out.data(_bytes(content))
    return 0


def _bytes(content: Json) -> bytes:
    if isinstance(text := content.get("text"), str):
        return text.encode("utf-8", "replace")
    try:
        return base64.b64decode(str(content.get("blob", "")))
    except binascii.Error:
        raise CtlError(f"the server sent invalid base64 for {content.get('uri')}") from None


@click.command(epilog="Examples:\n\n\b\n  mcpctl prompts\n  mcpctl prompts everything --json")
@click.argument("server", required=False, shell_complete=server_names)
@click.pass_obj
def prompts(cli: CliContext, server: str | None) -> int:
    """List the prompts of all servers, or of one.

    ARGUMENTS in brackets are optional. Get a prompt with: mcpctl prompt PROMPT@SERVER key=text
    """
    return _list_prompts(cli, server)


def _list_prompts(cli: CliContext, server: str | None) -> int:
    reply = cli.call("mcpd/prompts", {"server": server} if server else {})
    if cli.show_json(reply):
        return 0
    rows: list[Line] = []
    for entry in reply.value["prompts"]:
        arguments = objects(entry.get("arguments"))
        required = [str(a.get("name")) for a in arguments if a.get("required") is True]
        optional = [str(a.get("name")) for a in arguments if a.get("required") is not True]
        rows.append([_target(entry), _bracketed(required, optional), _description(entry)])
    if rows:
        header = ("PROMPT", "ARGUMENTS", "DESCRIPTION")
        cli.out.lines(table(header, rows, fit=cli.out.columns, squeeze=(1,)))
    else:
        cli.out.message(f"no prompts{_on(server)}")
    report_missing(cli, objects(reply.value.get("missing")))
    return 0


@click.command(
    epilog="Examples:\n\n\b\n  mcpctl prompt\n  mcpctl prompt simple-prompt@everything\n"
    "  mcpctl prompt everything args-prompt city=Paris"
)
@click.argument(
    "words", metavar="[SERVER | PROMPT@SERVER [KEY=TEXT]...]", nargs=-1, shell_complete=prompt_targets
)
@click.pass_obj
def prompt(cli: CliContext, words: tuple[str, ...]) -> int:
    """Get a prompt with its arguments filled in, or list all.

    You can also write SERVER/PROMPT or SERVER PROMPT. Prompt arguments are always text. Without PROMPT, lists
    the prompts of SERVER or of all servers.
    """
    if not words or (len(words) == 1 and not any(mark in words[0] for mark in "@/:=")):
        return _list_prompts(cli, words[0] if words else None)
    server, name, rest = split_target(words, "prompt")
    given = parse_pairs(rest, {})
    arguments = {key: value for key, value in given.items() if isinstance(value, str)}
    if wrong := given.keys() - arguments.keys():
        raise UsageError(f"prompt arguments must be text: {', '.join(sorted(wrong))}", hint="write KEY=TEXT")
    reply = cli.call("mcpd/prompt", {"server": server, "prompt": name, "arguments": arguments}, timeout=None)
    if cli.show_json(reply):
        return 0
    for message in objects(reply.value.get("messages")):
        cli.out.line(paint(f"{message.get('role', '?')}:", "bold"))
        cli.out.block(_text(mapping(message.get("content"))))
    return 0


def _text(content: Json) -> str:
    if isinstance(text := content.get("text"), str):
        return text
    resource = mapping(content.get("resource"))
    if isinstance(text := resource.get("text"), str):
        return text
    about = content.get("mimeType") or content.get("uri") or resource.get("uri")
    return f"[{content.get('type', 'content')} {about or json.dumps(sorted(content))}]"
