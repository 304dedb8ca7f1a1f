"""The environment of a login shell, and how that of a server differs from it.

A service runs without the environment of a terminal, which is the most common cause of "works in my
terminal". Only names of variables are returned, because a value may be secret.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from mcpd.config.masking import is_secret_name

TIMEOUT = 5.0
"""Seconds. Some shells take two to start."""
_MARK = "__mcpd_environment__"
_KEPT = ("HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS")


def login_environment(environ: Mapping[str, str]) -> dict[str, str] | None:
    """Start an interactive login shell and return its variables; None if it fails or takes longer than 5 s.

    The shell runs the user's startup files, as in every new terminal.
    """
    import signal
    import subprocess

    shell = environ.get("SHELL") or "/bin/sh"
    script = f"printf %s {_MARK}; env -0; printf %s {_MARK}"
    bare = {name: environ[name] for name in _KEPT if name in environ}
    try:
        process = subprocess.Popen(
            [shell, "-l", "-i", "-c", script],
            env={**bare, "PATH": "/usr/local/bin:/usr/bin:/bin", "TERM": "dumb"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError:
        return None
    with process:
        try:
            out, _ = process.communicate(timeout=TIMEOUT)
        except subprocess.TimeoutExpired as late:
            # The output may be complete: a background process of a startup file keeps the pipe open.
            out = late.output or b""
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    parts = out.decode("utf-8", "surrogateescape").split(_MARK)
    if len(parts) < 3:
        return None
    pairs = (entry.partition("=") for entry in parts[1].split("\0") if "=" in entry)
    return {name: value for name, _, value in pairs}


def missing_directories(login_path: str, path: str) -> list[str]:
    """Return existing directories of the shell's PATH that `path` lacks, except `sbin`."""
    known = set(path.split(":"))
    entries = dict.fromkeys(entry for entry in login_path.split(":") if os.path.isabs(entry))
    lacking = (entry for entry in entries if entry not in known and not entry.endswith("/sbin"))
    return [entry for entry in lacking if os.path.isdir(entry)]


_CERTIFICATES = (
    r"SSL_CERT_(?:FILE|DIR)|NODE_EXTRA_CA_CERTS|\w*CA_BUNDLE|NODE_TLS_REJECT_UNAUTHORIZED|\w*_CERT"
)
_PROXIES = r"(?:https?|all|no|ftp)_proxy"
_VERSION_MANAGERS = r"(?:NVM|FNM|VOLTA|ASDF|MISE|PYENV|RBENV|NODENV|CONDA|SDKMAN)_\w+|VIRTUAL_ENV"
_RUNTIMES = (
    r"(?:NODE|NPM|PNPM|BUN|DENO|PYTHON|PIP|UV|JAVA|GO|CARGO|RUSTUP|GEM|RUBY|PERL|DOTNET|DOCKER|LD)_?"
    r"(?:\w*_)?(?:PATH|HOME|DIR|ROOT|OPTIONS|OPTS|HOST|CONTEXT|CACHE|CONFIG\w*|REGISTRY|INDEX\w*)\w*"
)
_IN_A_TERMINAL = re.compile(rf"{_CERTIFICATES}|{_PROXIES}|{_VERSION_MANAGERS}|{_RUNTIMES}", re.IGNORECASE)
"""Variables of a terminal that its programs may need. Most others belong to the terminal or its session."""
_RARELY_MATTER = re.compile(
    r"LANG|LANGUAGE|LC_\w+|TZ|XDG_\w+|DBUS_\w+|SSH_\w+|DISPLAY|WAYLAND_DISPLAY|DESKTOP_SESSION|GPG_\w+"
    r"|EDITOR|VISUAL|PAGER|LESS\w*|HOSTNAME|HOME|USER|LOGNAME|SHELL|TMPDIR|HIST\w+|LS_\w+"
)
_SHELL_VARIABLES = "_ SHLVL PWD OLDPWD PS1 PS2 TERM LS_COLORS COLUMNS LINES HISTFILE MAIL PATH"
_IGNORED = frozenset(_SHELL_VARIABLES.split())
_ABOUT_CERTIFICATES = r"certificate|\bssl\b|\btls\b|self.signed|\bissuer\b"
_ABOUT_THE_NETWORK = (
    r"ENOTFOUND|ECONN|ETIMEDOUT|EAI_AGAIN|getaddrinfo|name resolution|proxy|network|connect|fetch"
)


def missing_variables(
    shell: Mapping[str, str], terminal: Mapping[str, str], server: Iterable[str], stderr: str
) -> list[str]:
    """Return the names of variables that are not among those of a `server`, most probable cause first.

    `shell` is the environment of a new login shell. Of `terminal`, which also has what was exported by hand
    and much that belongs to the session, only the variables count that programs are known to need.
    """
    known = {name for name in terminal if _IN_A_TERMINAL.fullmatch(name)}
    lacking = (shell.keys() | known) - set(server) - _IGNORED
    return _by_probability((name for name in lacking if not name.startswith("BASH_FUNC")), stderr)


def different_variables(
    shell: Mapping[str, str], terminal: Mapping[str, str], inherited: Mapping[str, str], stderr: str
) -> list[str]:
    """Return the names of variables that a server has inherited from mcpd with another value than a terminal
    has, most probable cause first."""
    here = {name: text for name, text in terminal.items() if _IN_A_TERMINAL.fullmatch(name)}
    ours = {**shell, **here}
    different = (name for name, text in inherited.items() if name in ours and ours[name] != text)
    return _by_probability((name for name in different if name not in _IGNORED), stderr)


def _by_probability(names: Iterable[str], stderr: str) -> list[str]:
    mentioned = set(re.findall(r"\w+", stderr))
    patterns = _patterns(stderr)

    def rank(name: str) -> tuple[int, str]:
        if name in mentioned:
            return 0, name
        if _RARELY_MATTER.fullmatch(name):
            return len(patterns) + 3, name
        found = (
            place for place, pattern in enumerate(patterns) if re.fullmatch(pattern, name, re.IGNORECASE)
        )
        return 1 + next(found, len(patterns) + (not is_secret_name(name))), name

    return sorted(set(names), key=rank)


def _patterns(stderr: str) -> Sequence[str]:
    """Return what matters, most probable first: what stderr is about, then what most often breaks servers."""
    usual = (_CERTIFICATES, _PROXIES, _VERSION_MANAGERS, _RUNTIMES)
    about_certificates = re.search(_ABOUT_CERTIFICATES, stderr, re.IGNORECASE)
    if not about_certificates and re.search(_ABOUT_THE_NETWORK, stderr, re.IGNORECASE):
        return (_PROXIES, _CERTIFICATES, _VERSION_MANAGERS, _RUNTIMES)
    return usual
