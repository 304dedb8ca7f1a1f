"""Which of its own variables mcpd passes to servers, unless they hold a password."""

from __future__ import annotations

import re
from collections.abc import Mapping

from mcpd.config.masking import scrub

_SESSION = frozenset({"HOME", "LANG", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER"})
_PREFIXES = ("LC_", "XDG_")
_PLACES = re.compile(
    r"(?i:(https?|ftp|all|no)_proxy|npm_config_(registry|cafile|(https?_?)?-?proxy|noproxy|userconfig|cache))"
    r"|CURL_CA_BUNDLE|REQUESTS_CA_BUNDLE|AWS_CA_BUNDLE|SSL_CERT_(DIR|FILE)|GIT_SSL_CA(INFO|PATH)|DENO_CERT"
    r"|NODE_EXTRA_CA_CERTS|NODE_USE_(SYSTEM_CA|ENV_PROXY)"
    r"|PIP_(INDEX_URL|EXTRA_INDEX_URL|FIND_LINKS|TRUSTED_HOST|CERT|CONFIG_FILE|PROXY|CACHE_DIR)"
    r"|UV_(INDEX|INDEX_URL|EXTRA_INDEX_URL|DEFAULT_INDEX|FIND_LINKS|INSECURE_HOST|NATIVE_TLS|SYSTEM_CERTS"
    r"|CONFIG_FILE|CACHE_DIR|OFFLINE|PYTHON_INSTALL_MIRROR|PYPY_INSTALL_MIRROR)"
    r"|SSH_AUTH_SOCK|DOCKER_(HOST|CONTEXT|CONFIG|CERT_PATH|TLS_VERIFY)"
)
"""Variables that say where things are: proxies, package registries, certificates, sockets."""
_USER = re.compile(r"(^|//)[^/\s@]+@")


def inherited_environment(ours: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that every child process inherits. None of them is secret."""
    return {
        name: text
        for name, text in ours.items()
        if name in _SESSION
        or name.startswith(_PREFIXES)
        or (_PLACES.fullmatch(name) and not _holds_password(text))
    }


def withheld_variables(ours: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of those that are not inherited because they hold a password or token."""
    return tuple(sorted(name for name in ours if _PLACES.fullmatch(name) and _holds_password(ours[name])))


def to_pass_step(name: str) -> str:
    """Return the command that passes a withheld variable to all servers."""
    return f"printenv {name} | mcpctl secret set {name} --env"


def _holds_password(text: str) -> bool:
    return _USER.search(text) is not None or scrub(text) != text
