"""The authorization request with its scopes, and the answer at the redirect URI (RFC 6749, 4.1; RFC 7636; RFC
9207; MCP 2026-07-28 for scopes).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Collection, Iterable, Mapping
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit, urlunsplit

import attrs

from mcpd.auth.oauth.documents import quote
from mcpd.auth.oauth.metadata import MAX_SCOPES, AuthorizationServer

# ── scopes ────────────────────────────────────────────────────────────────────────────────────────────


OFFLINE_ACCESS = "offline_access"


def first_request(
    *,
    configured: Collection[str] | None,
    challenge: Collection[str] | None,
    resource: Collection[str] | None,
    server: Collection[str],
) -> tuple[str, ...] | None:
    """Return the scopes of a first authorization; None to leave the parameter out.

    Those of the definition, else of the challenge, else all of the resource's metadata. The list of the
    authorization server (`server`) is about all of its resources and is never requested, except for
    `offline_access`, which asks for a refresh token and is added only where the server knows it.
    """
    if configured is not None:
        return tuple(dict.fromkeys(configured)) or None
    chosen = challenge if challenge else resource
    if not chosen:
        return None
    wanted = list(dict.fromkeys(chosen))[:MAX_SCOPES]
    if OFFLINE_ACCESS in server and OFFLINE_ACCESS not in wanted:
        wanted.append(OFFLINE_ACCESS)
    return tuple(wanted)


def more_scopes(*known: Iterable[str] | None) -> tuple[str, ...]:
    """Return the union, in order: what was requested before, what was granted, and what is needed now."""
    return tuple(dict.fromkeys(scope for scopes in known for scope in scopes or ()))


# ── the request and its answer ────────────────────────────────────────────────────────────────────────


MAX_URL = 8192
"""Characters of an authorization URL; browsers and servers cut longer ones."""
_MAX_ANSWER = 16_384


class AnswerError(Exception):
    """The answer at the redirect URI gives no code: it is refused, or says that the person or the server
    refused. The message is safe to show."""


class UnrelatedAnswer(AnswerError):
    """The answer is not for this request; the request is still open."""


@attrs.frozen
class AuthorizationRequest:
    """What has to be remembered until the answer arrives. `url` contains secrets, too."""

    url: str = attrs.field(repr=False)
    """To open in a browser."""
    issuer: str
    sends_iss: bool
    redirect_uri: str
    state: str = attrs.field(repr=False)
    verifier: str = attrs.field(repr=False)


def new_secret() -> str:
    """Return 256 random bits: a state, or a code verifier of 43 characters (RFC 7636, 4.1)."""
    return secrets.token_urlsafe(32)


def code_challenge(verifier: str) -> str:
    """Return the S256 challenge of a verifier (RFC 7636, 4.2)."""
    return base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()


def build_request(
    server: AuthorizationServer,
    *,
    client_id: str,
    redirect_uri: str,
    resource: str | None,
    scopes: Collection[str] | None,
    extra: Mapping[str, str] | None = None,
    state: str | None = None,
    verifier: str | None = None,
) -> AuthorizationRequest:
    """Return the request. A query that the endpoint already has is kept; `extra` replaces nothing of ours.

    Raises ValueError if the URL would be too long.
    """
    assert server.authorization_endpoint is not None
    state, verifier = state or new_secret(), verifier or new_secret()
    ours = {
        "response_type": "code",
        "client_id": client_id,
        "redirect_uri": redirect_uri,
        "state": state,
        "code_challenge": code_challenge(verifier),
        "code_challenge_method": "S256",
    }
    if scopes:
        ours["scope"] = " ".join(scopes)
    if resource is not None:
        ours["resource"] = resource
    parts = urlsplit(server.authorization_endpoint)
    fixed = [pair for pair in parse_qsl(parts.query, keep_blank_values=True) if pair[0] not in ours]
    added = [pair for pair in (extra or {}).items() if pair[0] not in ours]
    query = urlencode([*fixed, *added, *ours.items()])
    url = urlunsplit((parts.scheme, parts.netloc, parts.path, query, ""))
    if len(url) > MAX_URL:
        raise ValueError(
            f"the authorization URL has {len(url)} characters, and at most {MAX_URL} are allowed: "
            "name fewer scopes in `oauth.scopes`"
        )
    return AuthorizationRequest(
        url=url,
        issuer=server.issuer,
        sends_iss=server.sends_iss,
        redirect_uri=redirect_uri,
        state=state,
        verifier=verifier,
    )


def read_answer(request: AuthorizationRequest, answer: str) -> str:
    """Return the authorization code of a redirect: its whole URL, or only its query. Raises AnswerError.

    The order of the checks matters: first that the answer is for this request, then who sent it, and only
    then what it says. Nothing of an answer from another issuer may be shown (RFC 9207, 2.4).
    """
    fields = _fields(answer)
    if fields is None or not hmac.compare_digest(_one(fields, "state").encode(), request.state.encode()):
        raise UnrelatedAnswer("the answer does not belong to this login: its `state` is missing or another")
    _check_issuer(request, fields)
    if "error" in fields:
        error = quote(_one(fields, "error"))
        description = quote(_one(fields, "error_description"))
        raise AnswerError(f"{error}: {description}" if description else error)
    code = _one(fields, "code")
    if not code:
        raise AnswerError("the answer has neither a code nor an error")
    return code


def check_pasted(text: str) -> str:
    """Return what a person pasted, if it may be an answer. Raises UnrelatedAnswer with what to paste."""
    text = text.strip()
    fields = _fields(text)
    if fields is None or "state" not in fields:
        raise UnrelatedAnswer(
            "paste the whole address that the browser ended at, with `code=` and `state=`: a code alone "
            "does not say which login it is for"
        )
    return text


def _check_issuer(request: AuthorizationRequest, fields: Mapping[str, list[str]]) -> None:
    """RFC 9207, 2.4: compare `iss` if it is there, and require it if the server said that it sends it."""
    stated = fields.get("iss")
    if stated is None and not request.sends_iss:
        return
    if stated != [request.issuer]:
        what = "does not name its issuer" if stated is None else "comes from another issuer"
        raise AnswerError(f"the answer {what}, so it was not used; {quote(request.issuer)} was expected")


def _fields(answer: str) -> dict[str, list[str]] | None:
    """Return the decoded parameters of a URL or a query."""
    if len(answer) > _MAX_ANSWER:
        return None
    try:
        query = urlsplit(answer).query if "://" in answer.partition("=")[0] else answer.lstrip("?")
        return parse_qs(query, keep_blank_values=True, max_num_fields=100)
    except ValueError:
        return None


def _one(fields: Mapping[str, list[str]], name: str) -> str:
    """Return the only value of a parameter; a parameter that is repeated is as good as missing."""
    values = fields.get(name, [])
    return values[0] if len(values) == 1 else ""
