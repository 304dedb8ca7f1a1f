"""References to secrets in a definition: what is fetched when a server starts, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, Protocol

import attrs

if TYPE_CHECKING:
    from mcpd.model.server_spec import ServerSpec

SecretKind = Literal["secret", "credential", "file", "cmd"]


@attrs.frozen
class SecretReference:
    """`${secret:NAME}` and its like; equal when the same thing is meant."""

    kind: SecretKind
    arguments: tuple[str, ...]
    """A name; an absolute path; a command line, split."""


@attrs.frozen
class UnavailableSecret:
    """Why there is no value, and what to do."""

    message: str
    fix: str
    missing: bool = False
    """It is simply not there: a default stands in."""


FetchedSecrets = Mapping[SecretReference, str | UnavailableSecret]
"""What has been fetched."""


@attrs.frozen
class ResolvedDefinition:
    """A definition with what is known put in; complete when nothing is `wanted`."""

    spec: ServerSpec
    unresolved: tuple[SecretReference, ...]
    secrets: frozenset[str] = attrs.field(repr=False)
    """Values to mask wherever something is shown or logged."""


class UnresolvedDefinition(Protocol):
    """A definition that is complete only once its secrets were fetched."""

    def resolve(self, fetched: FetchedSecrets) -> ResolvedDefinition:
        """Raises BadSpec when something is unavailable, or useless where it stands."""
        ...
