"""The secrets of entries: those in plain text go to the secret store, and others are asked for."""

from __future__ import annotations

import re
from collections.abc import Mapping

import attrs

from ctl.editors.read_entries import ImportCandidate
from ctl.editors.variables import secret_name as name_for
from ctl.editors.variables import secret_reference
from mcpd.config.masking import (
    KNOWN_TOKENS,
    MASK,
    SCHEME,
    is_secret_name,
    is_secret_segment,
    looks_random,
    mask_definition,
)

_USERINFO = re.compile(r"(?<=://)([^/@\s:]*):([^/@\s]+)@")
_QUERY = re.compile(r"(?<=[?&])([^=&#\s]+)=([^&#\s]+)")
_PATH = re.compile(r"(https?://[^/?#]*)(/(?:(?!\$\{)[^?#\s])*)(?![^?#])")
_SEGMENT = re.compile(r"[^/]+")
_FOREIGN_VARIABLE = re.compile(r"\$\$\{[^{}]*\}")
"""A variable that another program, such as mcp-remote, resolves; plain text to mcpd."""
_HEADER = re.compile(r"([A-Za-z][A-Za-z0-9-]*):\s*(?=\S)")


@attrs.frozen
class InlineSecret:
    """One secret in plain text."""

    name: str
    """The name of the secret in the secret store."""
    location: str
    """Where it was, such as `env.TOKEN`."""
    value: str = attrs.field(repr=False)


@attrs.frozen
class ExtractedSecrets:
    """A definition with references in place of its secrets."""

    definition: dict[str, object]
    secrets: tuple[InlineSecret, ...] = ()


def extract_secrets(server: str, definition: Mapping[str, object], taken: dict[str, str]) -> ExtractedSecrets:
    """Replace the secrets of one server by references.

    `taken` maps the names in use to their values: each value is stored once, and two values never share a
    name. New secrets are added to it.
    """
    work = _SecretExtractor(server, taken)
    lifted_definition = {key: work.field(key, value) for key, value in definition.items()}
    return ExtractedSecrets(lifted_definition, tuple(work.literals))


def masked_definition(one: ExtractedSecrets) -> dict[str, object]:
    """Return the definition to show: secrets are `***`, wherever they will be stored."""
    definition = one.definition
    for secret in one.secrets:
        definition = replace_text(definition, secret_reference(secret.name), MASK)
    return mask_definition(definition)


class _SecretExtractor:
    def __init__(self, server: str, taken: dict[str, str]) -> None:
        self.server = server
        self.taken = taken
        self.literals: list[InlineSecret] = []

    def field(self, key: str, value: object) -> object:
        if key == "env" and isinstance(value, dict):
            return {name: self.named(name, f"env.{name}", text) for name, text in value.items()}
        if key == "headers" and isinstance(value, dict):
            return {name: self.header(name, text) for name, text in value.items()}
        if key == "oauth" and isinstance(value, dict):
            return {name: self.login(name, text) for name, text in value.items()}
        if key == "args" and isinstance(value, list):
            return self.args(value)
        if key == "url" and isinstance(value, str):
            return self.url(value, "url")
        return value

    def login(self, name: str, value: object) -> object:
        """Replace the secret of a login's client; the rest of its settings is public."""
        if name != "clientSecret" or not isinstance(value, str) or "${" in value.replace("$${", ""):
            return value
        return self.lift(f"{self.server}_client_secret", f"oauth.{name}", value)

    def args(self, args: list[object]) -> list[object]:
        done: list[object] = []
        option = ""
        for number, word in enumerate(args):
            place = f"args[{number}]"
            name, equals, rest = str(word).partition("=")
            header = _HEADER.match(str(word))
            if option and option.lstrip("-") in ("header", "H") and header:
                done.append(header[0] + self.header(header[1], str(word)[header.end() :], place))
            elif equals and re.fullmatch(r"-*[A-Za-z_][A-Za-z0-9_-]*", name):
                done.append(f"{name}={self.named(name.lstrip('-'), place, rest)}")
            elif "://" in str(word):
                done.append(self.url(str(word), place))
            else:
                done.append(self.named(option.lstrip("-"), place, str(word)))
            option = str(word) if str(word).startswith("-") and not equals else ""
        return done

    def header(self, name: str, text: str, place: str = "") -> str:
        scheme = SCHEME.match(text)
        start = scheme.end() if scheme else 0
        called = "token" if name.lower() == "authorization" else name
        return text[:start] + self.named(
            name, place or f"headers.{name}", text[start:], f"{self.server}_{called}"
        )

    def url(self, text: str, place: str) -> str:
        text = _USERINFO.sub(lambda m: f"{m[1]}:{self.lift(f'{self.server}_password', place, m[2])}@", text)
        if found := _PATH.match(text):  # for some services, the path is the only credential
            path = _SEGMENT.sub(lambda m: self.segment(m[0], place), found[2])
            text = found[1] + path + text[found.end() :]
        return _QUERY.sub(lambda m: f"{m[1]}={self.named(m[1], place, m[2], f'{self.server}_{m[1]}')}", text)

    def segment(self, text: str, place: str) -> str:
        """Replace a segment of a URL's path if it looks like a secret."""
        if not is_secret_segment(text):
            return text
        return self.lift(f"{self.server}_path", place, text)

    def named(self, name: str, place: str, text: object, called: str = "") -> str:
        """Replace a value if it, or its name, looks like a secret."""
        value = str(text)
        if "://" in value and not is_secret_name(name):
            inside = self.url(value, place)
            if inside != value:
                return inside
        if value.startswith("-") or "${" in value.replace("$${", "") or _FOREIGN_VARIABLE.fullmatch(value):
            return value
        if (
            (is_secret_name(name) and len(value) >= 6 and not _is_harmless(value))
            or KNOWN_TOKENS.search(value)
            or looks_random(value)
        ):
            return self.lift(called or name or f"{self.server}_secret", place, value)
        return value

    def lift(self, called: str, place: str, text: str) -> str:
        if "${" in text.replace("$${", ""):
            return text
        value = text.replace("$${", "${")
        name = free_secret_name(called, self.server, value, self.taken)
        self.taken[name] = value
        self.literals.append(InlineSecret(name, place, value))
        return secret_reference(name)


def free_secret_name(called: str, server: str, value: str, taken: dict[str, str]) -> str:
    """Return the name under which `value` is stored, or an unused name."""
    base = name_for(called)
    fuller = [] if base.startswith(name_for(server)) else [name_for(f"{server}_{called}")]
    choices = [base, *fuller, *(f"{base}_{n}" for n in range(2, 1000))]
    same = next((name for name, known in taken.items() if known == value), None)
    return same or next(name for name in choices if name not in taken)


def _is_harmless(value: str) -> bool:
    """Return whether a value is a switch or path, as in `AUTH_MODE` or `KEY_FILE`."""
    return value.lower() in ("true", "false", "oauth", "bearer") or value.startswith(("/", "~/", "./"))


# ---- secrets that no file contains -------------------------------------------------------------------


def named_by_owner(one: ImportCandidate) -> ImportCandidate:
    """Return a candidate that refers to the secrets that only the user knows by names with their owner.

    So no entry gets the value that was entered for another editor. The owner is in small letters, and the
    secrets that are found in files have capital letters only.
    """
    definition, needed = one.definition, []
    for secret in one.needed_secrets:
        if secret.value is None:
            renamed = attrs.evolve(secret, name=f"{secret.owner}_{secret.name}")
            definition = replace_text(
                definition, secret_reference(secret.name), secret_reference(renamed.name)
            )
            secret = renamed
        needed.append(secret)
    return attrs.evolve(one, definition=definition, needed_secrets=tuple(needed))


def replace_text(value: Mapping[str, object], old: str, new: str) -> dict[str, object]:
    """Replace `old` by `new` in all strings of a definition."""

    def walk(inner: object) -> object:
        if isinstance(inner, dict):
            return {key: walk(below) for key, below in inner.items()}
        if isinstance(inner, list):
            return [walk(below) for below in inner]
        return inner.replace(old, new) if isinstance(inner, str) else inner

    return {key: walk(inner) for key, inner in value.items()}
