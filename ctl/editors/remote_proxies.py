"""`mcp-remote` and `mcp-proxy`, by which an editor reaches a URL: the server behind, to be reached by us."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence

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
