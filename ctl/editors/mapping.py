"""An entry as an editor writes it → a definition in our words, or the reason why that cannot be.

Spellings, units and habits of all of them in one place: they borrow from one another, so what one
program writes is accepted from every other.
"""

from __future__ import annotations

import math
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import attrs

from ctl.editors.read_entries import Fields, RawEntry
from ctl.editors.variables import NeededSecret, UnusableEntry, VariableTranslator, read_dotenv
from mcpd.config.fields import TRANSPORT_TYPES

_URLS = ("url", "serverUrl", "server_url", "baseUrl", "base_url", "uri")
_TYPES = ("type", "transport", "transportType", "protocol")
_INCLUDE = ("includeTools", "enabled_tools", "enabledTools", "tools", "allowedTools")
_EXCLUDE = ("excludeTools", "disabled_tools", "disabledTools", "blockedTools")
_LOGIN = ("oauth", "auth", "authProviderType", "oauth_resource")
_MILLISECONDS = 1000.0


@attrs.frozen
class MappedEntry:
    """One entry, understood."""

    definition: dict[str, object] = attrs.field(repr=False)
    implied_cwd: str | None = None
    """Where the editor would have run it, although the entry does not say so."""
    notes: tuple[str, ...] = ()
    needed_secrets: tuple[NeededSecret, ...] = ()


def map_entry(raw: RawEntry, translator: VariableTranslator) -> MappedEntry:
    """What `raw` means. `translator` is for this entry alone. Raises Unusable."""
    fields = _flatten(raw)
    _check_server(fields)
    notes: list[str] = []
    kind = _kind(fields)
    url_key = next((key for key in ("httpUrl", *_URLS) if fields.get(key)), None)
    remote = url_key is not None and (kind not in (None, "stdio") or not _has_command(fields))
    base = raw.project or translator.home
    if remote:
        assert url_key is not None
        definition = _map_remote(raw, fields, url_key, kind, translator)
    else:
        definition = _map_program(fields, translator, base, notes)
    _map_common_fields(raw, fields, definition)
    for key in _LOGIN:
        if fields.get(key) not in (None, False, "", {}, "none"):
            notes.append(f"how to log in ('{key}') is not taken over")
    if fields.get("headersHelper"):
        notes.append("the program that makes its headers is not run: write the header yourself")
    if fields.get("sandboxEnabled") or fields.get("sandbox"):
        notes.append("the editor's sandbox is not taken over: it runs with all that you may do")
    if fields.get("quarantined") is True:
        notes.append("it is in quarantine there, so it is switched off here")
    implied = str(raw.project) if raw.project is not None and not remote and "cwd" not in definition else None
    return MappedEntry(definition, implied, (*translator.notes, *notes), tuple(translator.needed_secrets))


def _flatten(raw: RawEntry) -> dict[str, object]:
    """Without the levels that some put in between."""
    fields = dict(raw.fields)
    for key in (
        "command",
        "transport",
    ):  # Zed's older `command: {path, …}`, Continue's older `transport: {…}`
        inner = fields.get(key)
        if isinstance(inner, dict):
            del fields[key]
            fields = {**inner, **fields}
            if "path" in inner:
                fields["command"] = fields.pop("path")
    options = fields.get("requestOptions")
    if isinstance(options, dict) and "headers" in options:
        fields.setdefault("headers", options["headers"])
    package = fields.get("package")  # Mozilla's `package = "uvx::mcp-server-time@2025.1"`
    if isinstance(package, str) and "::" in package and not _has_command(fields):
        runner, _, what = package.partition("::")
        fields["command"], fields["args"] = runner, [*(["-y"] if runner == "npx" else []), what]
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
        raise UnusableEntry("it is a part of the editor itself")
    if not _has_command(fields) and not any(fields.get(key) for key in ("httpUrl", *_URLS)):
        if "settings" in fields or fields.get("source") == "extension":
            raise UnusableEntry("it comes with an extension of the editor, which alone knows its command")
        raise UnusableEntry("it has neither a command nor a URL")


def _has_command(fields: Fields) -> bool:
    return any(fields.get(key) for key in ("command", "cmd", "executable"))


def _kind(fields: Fields) -> str | None:
    """`stdio`, `http`, `sse` or `ws` when the entry says so."""
    for key in _TYPES:
        written = fields.get(key)
        if isinstance(written, str) and written:
            return TRANSPORT_TYPES.get(written) or TRANSPORT_TYPES.get(written.lower())
    return None


# ---- how it is reached -------------------------------------------------------------------------------


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
    """The program and its arguments, one word each."""
    written = next(fields[key] for key in ("command", "cmd", "executable") if fields.get(key))
    args = _texts(fields.get("args"))
    if isinstance(written, list):
        words = [*_texts(written), *args]
    elif isinstance(written, str):
        words = [written, *args]
        windows = re.match(r"[A-Za-z]:[\\/]", written)
        if not args and re.search(r"\S\s+\S", written) and not windows and not os.path.exists(written):
            try:
                words = shlex.split(written)
            except ValueError:
                raise UnusableEntry("its command is one text with a quotation mark that never ends") from None
            notes.append("its command was one text, and was split into words")
    else:
        raise UnusableEntry("its command is neither a text nor a list")
    if not words or not words[0]:
        raise UnusableEntry("its command is empty")
    shell = re.split(r"[\\/]", words[0])[-1].lower()
    if shell in ("cmd", "cmd.exe") and len(words) > 2 and words[1].lower() == "/c" and os.name != "nt":
        notes.append("cmd /c was left out: this is no Windows")
        words = words[2:]
    return words


def _map_environment(fields: Fields, translator: VariableTranslator, base: Path) -> dict[str, object]:
    env: dict[str, object] = {}
    file = fields.get("envFile")
    if isinstance(file, str) and file:
        path = base / _resolve_home(translator.translate(file), translator.home)
        values = read_dotenv(path)
        if values is None:
            raise UnusableEntry(f"its envFile cannot be read: {path}")
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
    if kind in ("http", "sse", "ws") and fields.get("type") != "remote":  # opencode's word for any URL
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


# ---- what every kind has -----------------------------------------------------------------------------


def _map_common_fields(raw: RawEntry, fields: Fields, definition: dict[str, object]) -> None:
    off = fields.get("disabled") is True or fields.get("enabled") is False or fields.get("isActive") is False
    if off or raw.disabled_elsewhere or fields.get("quarantined") is True:
        definition["enabled"] = False
    description = fields.get("description")
    if isinstance(description, str) and description:
        definition["description"] = description.replace("${", "$${")
    if fields.get("trust") is True:
        definition["trust"] = True
    for ours, spellings in (("includeTools", _INCLUDE), ("excludeTools", _EXCLUDE)):
        tools = next((fields[key] for key in spellings if isinstance(fields.get(key), list)), None)
        names = _texts(tools)
        if (names and names != ["*"]) or (ours == "includeTools" and tools == []):
            definition[ours] = [name.replace("${", "$${") for name in names]
    for ours, value in _timeouts(raw, fields):
        if value is not None and value > 0 and math.isfinite(value):
            definition[ours] = int(value) if value == int(value) else value


def _timeouts(raw: RawEntry, fields: Fields) -> Iterable[tuple[str, float | None]]:
    """In milliseconds, whatever they were written in."""
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


# ---- plain values ------------------------------------------------------------------------------------


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _texts(value: object) -> list[str]:
    return [_text(item) for item in _list(value)]


def _members(value: object) -> Iterable[tuple[str, object]]:
    return [(str(name), inner) for name, inner in value.items()] if isinstance(value, Mapping) else []


def _text(value: object) -> str:
    """Editors take a number where a text should be."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (str, int, float)):
        return str(value)
    raise UnusableEntry("something in it that should be a text is an object, a list or null")


def _resolve_home(text: str, home: Path) -> str:
    text = text.replace("${HOME}", str(home))
    return str(home) + text[1:] if text.startswith("~/") else text


_RUNNERS = ("npx", "bunx", "pnpx", "pnpm", "yarn", "npm", "node", "volta", "mise", "uvx", "uv", "pipx")
_KINDS = {"sse-only": "sse", "http-only": "http"}
_PROXY_KINDS = {"sse": "sse", "streamablehttp": "http"}
_BEARER = "API_ACCESS_TOKEN"
"""The variable that mcp-proxy makes its Authorization header of."""


def unwrap_proxy(definition: Mapping[str, object]) -> dict[str, object] | None:
    """The definition by URL, when this one runs one of the two and nothing in it would be lost; else None."""
    args = definition.get("args")
    words = [definition.get("command"), *(args if isinstance(args, list) else [])]
    texts = [word for word in words if isinstance(word, str)]
    start = next((n for n, word in enumerate(texts) if proxy_program(word)), None)
    if start is None or (start and os.path.basename(texts[0]) not in _RUNNERS):
        return None
    env = definition.get("env")
    if proxy_program(texts[start]) == "mcp-proxy":
        found = _parse_mcp_proxy(texts[start + 1 :], env if isinstance(env, Mapping) else {})
    else:
        found = _parse_mcp_remote(texts[start + 1 :])
    if found is None:
        return None
    for name, value in (env if isinstance(env, Mapping) else {}).items():
        found = _substitute_headers(found, f"${{{name}}}", str(value))
    kept = {key: value for key, value in definition.items() if key not in ("command", "args", "env", "cwd")}
    return {**found, **kept}


def proxy_program(word: str) -> str:
    """Which of the two a word of a command line is; empty for any other."""
    name = os.path.basename(word).partition("@")[0]
    return name if name in ("mcp-remote", "mcp-proxy") else ""


def _parse_mcp_proxy(words: Sequence[str], env: Mapping[str, object]) -> dict[str, object] | None:
    """Its command line towards a URL; with a program in its place it serves that, the other way round."""
    url, kind = "", "sse"
    headers: dict[str, object] = {}
    if env.get(_BEARER):
        headers["Authorization"] = f"Bearer {env[_BEARER]}"
    rest = iter(words)
    for word in rest:
        if word in ("-H", "--headers"):
            name = next(rest, "")
            headers[name] = next(rest, "")
        elif word == "--transport":
            kind = _PROXY_KINDS.get(next(rest, ""), "")
        elif word in ("--debug", "--no-debug"):
            continue
        elif word.startswith("-") or url:
            return None
        else:
            url = word
    if not kind or not url.startswith(("http://", "https://", "${")):
        return None
    return {"type": kind, "url": url, **({"headers": headers} if headers else {})}


def _parse_mcp_remote(words: Sequence[str]) -> dict[str, object] | None:
    """Its own command line: the URL, a port for logging in, headers and how to connect."""
    url, kind = "", ""
    headers: dict[str, object] = {}
    rest = iter(words)
    for word in rest:
        if word == "--header":
            name, colon, value = next(rest, "").partition(":")
            if not colon:
                return None
            headers[name.strip()] = value.strip()
        elif word == "--transport":
            kind = _KINDS.get(next(rest, ""), "")
        elif word in ("--allow-http", "--debug", "--silent", "--enable-proxy"):
            continue
        elif word in ("--host", "--auth-timeout", "--resource"):
            next(rest, "")
        elif word.startswith("-") or (url and not word.isdigit()):
            return None  # something that we do not know may matter
        elif not url:
            url = word
    if not url.startswith(("http://", "https://", "${")):
        return None
    stated = {"type": kind} if kind else {}
    return {**stated, "url": url, **({"headers": headers} if headers else {})}


def _substitute_headers(found: dict[str, object], reference: str, value: str) -> dict[str, object]:
    """mcp-remote puts the variables of its own environment into headers."""
    headers = found.get("headers")
    if not isinstance(headers, Mapping):
        return found
    return {**found, "headers": dict(_replaced(headers, reference, value))}


def _replaced(headers: Mapping[str, object], reference: str, value: str) -> Iterator[tuple[str, object]]:
    for name, text in headers.items():
        # Written by us, a `${` that the editor took for plain text begins with two dollars.
        yield name, str(text).replace("$" + reference, value).replace(reference, value)
