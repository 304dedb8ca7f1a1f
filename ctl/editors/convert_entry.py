"""Maps an editor's entry to a server definition of mcpd, and unwraps `mcp-remote`.

The spellings and units of all editors are accepted from every editor, because they copy from one another.
"""

from __future__ import annotations

import math
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import attrs

from ctl.editors.config_files import (
    EditorSpec,
    Scope,
)
from ctl.editors.variables import NeededSecret, UnusableEntry, VariableTranslator, read_dotenv
from mcpd.config.definition import TRANSPORT_TYPES
from mcpd.config.in_place_edits.document import KeyPath

Fields = Mapping[str, object]


@attrs.frozen
class RawEntry:
    """One entry as the editor wrote it."""

    name: str
    fields: Fields = attrs.field(repr=False)
    editor: EditorSpec
    path: Path
    slot: KeyPath
    scope: Scope
    project: Path | None = None
    """The directory to which the entry is limited, if any."""
    disabled_elsewhere: bool = False
    """Disabled by a list outside of the entry."""


_URLS = ("url", "serverUrl", "server_url", "baseUrl", "base_url", "http_url", "uri")
_TYPES = ("type", "transport", "transportType", "protocol")
_INCLUDE = ("includeTools", "enabled_tools", "enabledTools", "tools", "allowedTools")
_EXCLUDE = ("excludeTools", "disabled_tools", "disabledTools", "blockedTools")
_SANDBOX = "the editor's sandbox is not imported; the server runs with all your permissions"
_LOADING = "mcpctl install --take-over writes its {} into the entry of mcpd"
_NOTES = {
    "deferTools": _LOADING.format("deferTools"),
    "headersHelper": "mcpd does not run its headersHelper; add the headers to the definition yourself",
    "sandboxEnabled": _SANDBOX,
    "sandbox": _SANDBOX,
    "quarantined": "it is quarantined in the editor, so it is imported as disabled",
}
"""Members that are not imported, and what that means."""
_MILLISECONDS = 1000.0


@attrs.frozen
class MappedEntry:
    """The definition that an entry means."""

    definition: dict[str, object] = attrs.field(repr=False)
    implied_cwd: str | None = None
    """The directory in which the editor would run it, if the entry does not name one."""
    notes: tuple[str, ...] = ()
    needed_secrets: tuple[NeededSecret, ...] = ()


def map_entry(raw: RawEntry, translator: VariableTranslator) -> MappedEntry:
    """Map one entry. Use a new `translator` for each entry. Raises UnusableEntry."""
    fields = _flatten(raw)
    _check_server(fields)
    notes: list[str] = []
    kind = _kind(fields)
    url_key = next((key for key in ("httpUrl", *_URLS) if fields.get(key)), None)
    implied: str | None = None
    if url_key is not None and (kind not in (None, "stdio") or not _has_command(fields)):
        definition = _map_remote(raw, fields, url_key, kind, translator)
        login = map_login(fields, translator, notes)
        if login is not None and not (login is False and has_own_login(definition)):
            definition["oauth"] = login
    else:
        definition = _map_program(fields, translator, raw.project or translator.home, notes)
        if raw.project is not None and "cwd" not in definition:
            implied = str(raw.project)
    definition |= _common_fields(raw, fields)
    notes += [note for key, note in _NOTES.items() if fields.get(key)]
    return MappedEntry(definition, implied, (*translator.notes, *notes), tuple(translator.needed_secrets))


def _flatten(raw: RawEntry) -> dict[str, object]:
    """Return the fields without nested levels."""
    fields = dict(raw.fields)
    options = fields.get("requestOptions")
    if isinstance(options, dict) and "headers" in options:
        fields.setdefault("headers", options["headers"])
    return {key: value for key, value in fields.items() if value is not None}


def _check_server(fields: Fields) -> None:
    kind = fields.get("type")
    for key, shape, what in (
        ("args", list, "a list"),
        ("env", Mapping, "an object"),
        ("environment", Mapping, "an object"),
        ("headers", Mapping, "an object"),
    ):
        if key in fields and not isinstance(fields[key], shape):
            raise UnusableEntry(f"its '{key}' is not {what}")
    if fields.get("bundled") is True or kind in ("builtin", "platform", "frontend", "inline_python"):
        raise UnusableEntry("it is built into the editor")
    if not _has_command(fields) and not any(fields.get(key) for key in ("httpUrl", *_URLS)):
        if "settings" in fields or fields.get("source") == "extension":
            raise UnusableEntry(
                "it belongs to an extension of the editor, and only the extension knows its command"
            )
        raise UnusableEntry("it has neither a command nor a URL")


def _has_command(fields: Fields) -> bool:
    return any(fields.get(key) for key in ("command", "cmd", "executable"))


def _kind(fields: Fields) -> str | None:
    """Return the `stdio`, `http`, `sse` or `ws` that the entry names, if any."""
    for key in _TYPES:
        written = fields.get(key)
        if isinstance(written, str) and written:
            return TRANSPORT_TYPES.get(written) or TRANSPORT_TYPES.get(written.lower())
    return None


def _map_program(
    fields: Fields, translator: VariableTranslator, base: Path, notes: list[str]
) -> dict[str, object]:
    words = _command_line(fields, notes)
    command, *args = [translator.translate(word) for word in words]
    definition: dict[str, object] = {"command": command}
    if args:
        definition["args"] = args
    env = _map_environment(fields, translator, base)
    if env:
        definition["env"] = env
    cwd = fields.get("cwd") or fields.get("workingDirectory")
    if isinstance(cwd, str) and cwd:
        there = translator.translate(cwd)
        definition["cwd"] = there if there.startswith(("/", "~", "${")) else os.path.normpath(base / there)
    return definition


def _command_line(fields: Fields, notes: list[str]) -> list[str]:
    """Return the program and its arguments."""
    written = next(fields[key] for key in ("command", "cmd", "executable") if fields.get(key))
    args = _texts(fields.get("args"))
    if isinstance(written, list):
        words = [*_texts(written), *args]
    elif not isinstance(written, str):
        raise UnusableEntry("its command is neither a string nor a list")
    elif not args and _is_command_line(written):
        try:
            words = shlex.split(written)
        except ValueError:
            raise UnusableEntry("its command contains an unterminated quotation mark") from None
        notes.append("its command was a single string and was split into words")
    else:
        words = [written, *args]
    if not words or not words[0]:
        raise UnusableEntry("its command is empty")
    shell = re.split(r"[\\/]", words[0])[-1].lower()
    if shell in ("cmd", "cmd.exe") and len(words) > 2 and words[1].lower() == "/c" and os.name != "nt":
        notes.append("`cmd /c` was removed, because this is not Windows")
        words = words[2:]
    return words


def _is_command_line(text: str) -> bool:
    """Return whether a command is a whole command line rather than a program with a space in its name."""
    is_windows = re.match(r"[A-Za-z]:[\\/]", text) is not None
    return re.search(r"\S\s+\S", text) is not None and not is_windows and not os.path.exists(text)


def _map_environment(fields: Fields, translator: VariableTranslator, base: Path) -> dict[str, object]:
    env: dict[str, object] = {}
    file = fields.get("envFile")
    if isinstance(file, str) and file:
        path = base / _resolve_home(translator.translate(file), translator.home)
        values = read_dotenv(path)
        if values is None:
            raise UnusableEntry(f"its envFile {path} cannot be read")
        env |= {name: value.replace("${", "$${") for name, value in values.items()}
    for key in ("env", "environment", "envs"):
        for name, value in _members(fields.get(key)):
            env[name] = f"${{{name}}}" if value is None else translator.translate(_text(value))
    for item in _list(fields.get("env_vars")):
        taken = item.get("name") if isinstance(item, dict) else item
        if isinstance(taken, str) and taken:
            env.setdefault(taken, f"${{{taken}}}")
    for key in _texts(fields.get("env_keys")):
        env.setdefault(key, translator.add_secret(key))
    return env


def _map_remote(
    raw: RawEntry, fields: Fields, key: str, kind: str | None, translator: VariableTranslator
) -> dict[str, object]:
    definition: dict[str, object] = {}
    if kind in ("http", "sse", "ws") and fields.get("type") != "remote":  # opencode calls any URL `remote`
        definition["type"] = kind
    elif key == "httpUrl":
        definition["type"] = "http"
    elif kind is None and raw.editor.default_url_type == "sse":
        definition["type"] = "sse"
    definition["url"] = translator.translate(_text(fields[key]))
    headers: dict[str, object] = {}
    for spelling in ("headers", "http_headers"):
        for name, value in _members(fields.get(spelling)):
            headers[name] = translator.translate(_text(value))
    for header, variable in _members(fields.get("env_http_headers")):
        headers[header] = f"${{{variable}}}"
    if fields.get("bearer_token_env_var"):
        headers["Authorization"] = f"Bearer ${{{fields['bearer_token_env_var']}}}"
    for spelling in ("bearerToken", "bearer_token"):
        if fields.get(spelling):
            headers["Authorization"] = f"Bearer {translator.translate(_text(fields[spelling]))}"
    if headers:
        definition["headers"] = headers
    return definition


def is_disabled(raw: RawEntry) -> bool:
    """Return whether the editor does not use the entry."""
    fields = raw.fields
    off = fields.get("disabled") is True or fields.get("enabled") is False or fields.get("isActive") is False
    return off or raw.disabled_elsewhere or fields.get("quarantined") is True


def _common_fields(raw: RawEntry, fields: Fields) -> dict[str, object]:
    """Return the members that programs and remote servers have in common."""
    found: dict[str, object] = {}
    if is_disabled(raw):
        found["enabled"] = False
    description = fields.get("description")
    if isinstance(description, str) and description:
        found["description"] = description.replace("${", "$${")
    if fields.get("trust") is True and raw.editor.entry_form is None:  # others trust for themselves
        found["trust"] = True
    if fields.get("alwaysLoad") is True or fields.get("deferTools") == "never":
        found["alwaysLoad"] = True
    include, exclude = _tools(fields, _INCLUDE), _tools(fields, _EXCLUDE)
    if include is not None and include != ["*"]:
        found["includeTools"] = include
    if exclude and exclude != ["*"]:
        found["excludeTools"] = exclude
    timeouts = {name: value for name, value in _timeouts(raw, fields) if value and 0 < value < math.inf}
    return found | {name: int(value) if value.is_integer() else value for name, value in timeouts.items()}


def _tools(fields: Fields, spellings: Sequence[str]) -> list[str] | None:
    """Return the first of several lists of tools; None if there is none."""
    found = next((fields[key] for key in spellings if isinstance(fields.get(key), list)), None)
    return None if found is None else [name.replace("${", "$${") for name in _texts(found)]


def _timeouts(raw: RawEntry, fields: Fields) -> Iterable[tuple[str, float | None]]:
    """Yield mcpd's timeout fields in milliseconds."""
    timeout = fields.get("timeout")
    if isinstance(timeout, dict):  # opencode's second version
        yield "connectTimeout", _number(timeout.get("startup"))
        yield "timeout", _number(timeout.get("request"))
    else:
        yield "timeout", _to_milliseconds(_number(timeout), raw.editor.timeout_unit)
    yield "connectTimeout", _to_milliseconds(_number(fields.get("connectionTimeout")), "either")
    yield "connectTimeout", _number(fields.get("startup_timeout_ms"))
    yield "connectTimeout", _to_milliseconds(_number(fields.get("startup_timeout_sec")), "s")
    yield "timeout", _to_milliseconds(_number(fields.get("tool_timeout_sec")), "s")


def _to_milliseconds(value: float | None, unit: str) -> float | None:
    if value is None:
        return None
    seconds = unit == "s" or (unit == "either" and value < 1000)
    return value * _MILLISECONDS if seconds else value


def _number(value: object) -> float | None:
    """Return a number; None for anything else, also for an integer that is too large for a float."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _texts(value: object) -> list[str]:
    return [_text(item) for item in _list(value)]


def _members(value: object) -> Iterable[tuple[str, object]]:
    return [(str(name), inner) for name, inner in value.items()] if isinstance(value, Mapping) else []


def _text(value: object) -> str:
    """Return a string or number as text: editors accept both."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (str, int, float)):
        return str(value)
    raise UnusableEntry("a value that must be a string is an object, a list, or null")


def _resolve_home(text: str, home: Path) -> str:
    text = text.replace("${HOME}", str(home))
    return str(home) + text[1:] if text.startswith("~/") else text


_RUNNERS = ("npx", "bunx", "pnpx", "pnpm", "yarn", "npm", "node", "volta", "mise", "uvx", "uv", "pipx")
_REMOTE = "mcp-remote"
_IGNORED = ("--allow-http", "--debug", "--silent", "--enable-proxy")
_IGNORED_WITH_VALUE = ("--host", "--auth-timeout", "--resource")
_TRANSPORTS = {"sse-only": "sse", "http-only": "http"}


def unwrap_proxy(definition: Mapping[str, object]) -> dict[str, object] | None:
    """Return the definition by URL of the server behind `mcp-remote`.

    None if the definition does not run it, or if something would be lost.
    """
    words = [definition.get("command"), *_list(definition.get("args"))]
    texts = [word for word in words if isinstance(word, str)]
    start = next((n for n, word in enumerate(texts) if _program(word) == _REMOTE), None)
    if start is None or (start and os.path.basename(texts[0]) not in _RUNNERS):
        return None
    found = _parse_remote(texts[start + 1 :])
    if found is None:
        return None
    url, kind, headers = found
    for variable, content in _members(definition.get("env")):  # mcp-remote expands it in headers
        reference = f"${{{variable}}}"
        for header, value in headers.items():
            # `$${` is how mcpd writes a `${` that the editor took as plain text.
            headers[header] = value.replace("$" + reference, str(content)).replace(reference, str(content))
    result: dict[str, object] = {"type": kind, "url": url, "headers": headers}
    kept = {key: value for key, value in definition.items() if key not in ("command", "args", "env", "cwd")}
    return {key: value for key, value in result.items() if value} | kept


def is_proxy(word: str) -> bool:
    """Return whether a word of a command line is a program that connects to another server."""
    return _program(word) in (_REMOTE, "mcp-proxy", "supergateway")


def _program(word: str) -> str:
    return os.path.basename(word).partition("@")[0]


def _parse_remote(words: Sequence[str]) -> tuple[str, str, dict[str, str]] | None:
    """Return the URL, the transport and the headers in the arguments of `mcp-remote`. None if there are
    other options than those known.
    """
    url, kind, headers = "", "", dict[str, str]()
    rest = iter(words)
    for word in rest:
        if word == "--header":
            name, colon, value = next(rest, "").partition(":")
            if not colon:
                return None
            headers[name.strip()] = value.strip()
        elif word == "--transport":
            kind = _TRANSPORTS.get(next(rest, ""), "")
        elif word in _IGNORED_WITH_VALUE:
            next(rest, "")
        elif word.startswith("-") and word not in _IGNORED:
            return None
        elif not word.startswith("-"):
            if url and not word.isdigit():  # digits: a login port
                return None
            url = url or word
    return (url, kind, headers) if url.startswith(("http://", "https://", "${")) else None


# ---- login settings ------------------------------------------------------------------------------------


_TEXTS = {
    "clientId": ("clientId", "client_id", "CLIENT_ID"),
    "clientSecret": ("clientSecret", "client_secret", "CLIENT_SECRET"),
    "resource": ("resource", "oauth_resource"),
}
"""Our members → their names in editors. Cursor uses capitals. Codex has some of them next to `url`."""
_SCOPES = ("scopes", "scope")


def map_login(fields: Fields, translator: VariableTranslator, notes: list[str]) -> object:
    """Return the member `oauth` for an entry: an object, or False. None if the entry needs none.

    What cannot be imported is added to `notes`.
    """
    if fields.get("oauth") is False:
        return False
    groups = [group for group in (fields.get("oauth"), fields.get("auth")) if isinstance(group, Mapping)]
    if "oauth_resource" in fields:  # Codex, which has its scopes there, too
        beside = {name: fields[name] for name in ("oauth_resource", *_SCOPES) if name in fields}
        groups.append(beside)
    settings: dict[str, object] = {}
    for group in groups:
        for name, value in _map_group(group, translator):
            settings.setdefault(name, value)
    if "clientId" in settings and "callbackPort" not in settings:
        notes.append(
            "its login uses a client of your own: register an address on this machine for that client, and "
            "set `oauth.callbackPort`"
        )
    return settings or None


def has_own_login(definition: Mapping[str, object]) -> bool:
    """Return whether a definition logs in with a header, so that mcpd would not log in anyway."""
    headers = definition.get("headers")
    return isinstance(headers, Mapping) and any(name.lower() == "authorization" for name in headers)


def _map_group(group: Mapping[str, object], translator: VariableTranslator) -> Iterator[tuple[str, object]]:
    for ours, spellings in _TEXTS.items():
        found = next((group[key] for key in spellings if isinstance(group.get(key), str)), None)
        if found:
            yield ours, translator.translate(str(found))
    for key in _SCOPES:
        scopes = group.get(key)
        words = scopes.split() if isinstance(scopes, str) else scopes if isinstance(scopes, list) else []
        if words and all(isinstance(word, str) for word in words):
            yield "scopes", [translator.translate(word) for word in words]
    port = group.get("callbackPort")
    if isinstance(port, int) and not isinstance(port, bool) and 0 < port < 65_536:
        yield "callbackPort", port
