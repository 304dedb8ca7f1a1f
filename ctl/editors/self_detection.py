"""Whether an entry of an editor leads to mcpd: what `install` writes, and what `import` passes over."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from ctl.errors import CtlError

_SOCKET = "mcpd.sock"


def is_mcpd_entry(fields: Mapping[str, object], addresses: frozenset[str] = frozenset()) -> bool:
    """Whether an entry, in whatever spelling, runs `mcpctl bridge` or has a URL of ours.

    `addresses`: where else mcpd listens, HOST:PORT or the path of a socket.
    """
    words: list[str] = []
    for key in ("command", "cmd", "args"):
        value = fields.get(key)
        if isinstance(value, dict):
            value = [value.get("path"), *_list(value.get("args"))]
        words += [str(item) for item in (value if isinstance(value, list) else [value]) if item is not None]
    if len(words) == 1:
        words = words[0].split()
    for number, word in enumerate(words):
        program = re.split(r"[\\/]", word)[-1]
        module = word == "ctl" and words[number - 1] == "-m"
        if (program == "mcpctl" or module) and "bridge" in words[number + 1 :]:
            return True
    urls = (fields.get(key) for key in ("url", "serverUrl", "httpUrl", "uri"))
    return any(_is_mcpd_url(url, addresses) for url in urls if isinstance(url, str))


def mcpctl_path() -> str:
    """The absolute path of mcpctl, as a program without our PATH can start it. Raises CtlError."""
    here = sys.argv[0] if os.path.basename(sys.argv[0]) == "mcpctl" else ""
    for path in (here, str(Path(sys.executable).parent / "mcpctl")):
        if os.path.sep in path and os.access(path, os.X_OK) and os.path.isfile(path):
            return os.path.abspath(path)
    if found := shutil.which("mcpctl"):
        return os.path.abspath(found)
    raise CtlError("cannot find mcpctl itself", hint="install it so that it is in the PATH")


def socket_url(path: str, server: str | None, profile: str | None) -> str:
    """The URL of mcpd's own socket for editors that take such, with all servers, one, or a profile's."""
    place = f"/servers/{quote(server, safe='')}/mcp" if server else "/mcp"
    return f"unix://{quote(path)}#{place}{f'/{quote(profile, safe=str())}' if profile and not server else ''}"


def _is_mcpd_url(url: str, addresses: frozenset[str]) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    if parts.scheme == "unix":
        path = unquote(parts.path)
        return os.path.basename(path) == _SOCKET or path in addresses
    return parts.netloc in addresses


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []
