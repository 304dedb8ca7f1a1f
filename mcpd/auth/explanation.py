"""How a login to a server would proceed, step by step. Registers and stores nothing."""

from __future__ import annotations

from collections.abc import Mapping

from mcpd.auth.client_choice import describe_client
from mcpd.auth.discovery import LoginError, discover, probe
from mcpd.auth.guarded_fetch import GuardedFetch
from mcpd.auth.oauth.challenge import Challenge
from mcpd.auth.oauth.scopes import first_request
from mcpd.model.login import AuthExplanation, AuthStep
from mcpd.model.server_spec import RemoteSpec


async def explain_login(spec: RemoteSpec, environ: Mapping[str, str]) -> AuthExplanation:
    """Return every step up to the choice of the client. An error is part of the result."""
    steps: list[AuthStep] = []

    def note(method: str, url: str, outcome: str, seconds: float) -> None:
        steps.append(AuthStep(step=f"{method} {url}", outcome=outcome, ms=round(seconds * 1000, 1)))

    fetch = GuardedFetch(spec.url, environ, spec.ca_file, note)
    try:
        challenge = await probe(fetch)
        said = "sent no challenge" if challenge is None else _describe_challenge(challenge)
        steps.append(AuthStep(step="server", outcome=said))
        found = await discover(fetch, spec.oauth, challenge)
    except LoginError as error:
        return AuthExplanation(server=spec.name, steps=tuple(steps), error=str(error))
    scopes = first_request(
        configured=spec.oauth.scopes,
        challenge=None if challenge is None else challenge.scopes,
        resource=None if found.metadata is None else found.metadata.scopes,
        server=found.server.scopes,
    )
    return AuthExplanation(
        server=spec.name,
        steps=tuple(steps),
        issuer=found.server.issuer,
        resource=found.resource,
        scopes=scopes or (),
        client=describe_client(found, spec.oauth),
    )


def _describe_challenge(challenge: Challenge) -> str:
    parts = [f"asked for {challenge.scheme.capitalize()}"]
    if challenge.resource_metadata:
        parts.append("named its metadata")
    if challenge.scopes:
        parts.append(f"scopes {' '.join(challenge.scopes)}")
    return ", ".join(parts)
