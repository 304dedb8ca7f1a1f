"""The authorization request, and the answers at the redirect URI."""

from __future__ import annotations

from urllib.parse import parse_qs, urlencode, urlsplit

import attrs
import pytest

from mcpd.auth.oauth.authorization import (
    AuthorizationRequest,
    RefusedByServer,
    RejectedAnswer,
    UnrelatedAnswer,
    build_request,
    check_pasted,
    code_challenge,
    new_secret,
    read_answer,
)
from mcpd.auth.oauth.metadata import AuthorizationServer

ISSUER = "https://as.example"
SERVER = AuthorizationServer(ISSUER, f"{ISSUER}/authorize?tenant=7", f"{ISSUER}/token")
REDIRECT = "http://127.0.0.1:32180/callback"


def request(*, sends_iss: bool = False, **options: object) -> AuthorizationRequest:
    server = attrs.evolve(SERVER, sends_iss=sends_iss)
    wanted: dict[str, object] = {
        "client_id": "c",
        "redirect_uri": REDIRECT,
        "resource": "https://mcp.example/mcp",
        "scopes": ("a", "b"),
        "state": "S",
        "verifier": "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk",
        **options,
    }
    return build_request(server, **wanted)  # type: ignore[arg-type]


def answer(**fields: str) -> str:
    return f"{REDIRECT}?{urlencode(fields)}"


def test_the_challenge_is_that_of_rfc_7636() -> None:
    """RFC 7636, appendix B."""
    challenge = code_challenge("dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk")
    assert challenge == "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM"


def test_the_url_has_every_parameter_and_keeps_the_query_of_the_endpoint() -> None:
    parts = urlsplit(request().url)
    assert f"{parts.scheme}://{parts.netloc}{parts.path}" == f"{ISSUER}/authorize"
    assert parse_qs(parts.query) == {
        "tenant": ["7"],
        "response_type": ["code"],
        "client_id": ["c"],
        "redirect_uri": [REDIRECT],
        "state": ["S"],
        "code_challenge": ["E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM"],
        "code_challenge_method": ["S256"],
        "scope": ["a b"],
        "resource": ["https://mcp.example/mcp"],
    }


def test_nothing_replaces_our_parameters() -> None:
    server = attrs.evolve(SERVER, authorization_endpoint=f"{ISSUER}/authorize?state=evil&client_id=evil")
    built = build_request(
        server,
        client_id="c",
        redirect_uri=REDIRECT,
        resource=None,
        scopes=None,
        extra={"access_type": "offline", "redirect_uri": "https://evil.example"},
        state="S",
    )
    query = parse_qs(urlsplit(built.url).query)
    assert (query["state"], query["client_id"], query["redirect_uri"]) == (["S"], ["c"], [REDIRECT])
    assert query["access_type"] == ["offline"]


def test_secrets_are_random_long_and_not_shown() -> None:
    one, other = request(state=None, verifier=None), request(state=None, verifier=None)
    assert len({one.state, one.verifier, other.state, other.verifier, new_secret()}) == 5
    assert len(one.verifier) == 43
    assert one.state not in repr(one)
    assert one.verifier not in repr(one)


# ── answers ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "text",
    [
        answer(code="C"),
        answer(code="C", state=""),
        answer(code="C", state="s"),
        answer(code="C", state="S2"),
        f"{REDIRECT}?code=C&state=S&state=S",
        f"{REDIRECT}#code=C&state=S",
        REDIRECT,
        "C",
        "",
        "code=C&state=S" + "x" * 20_000,
        answer(code="C", state="é"),
    ],
)
def test_an_answer_with_another_state_is_not_for_this_login(text: str) -> None:
    with pytest.raises(UnrelatedAnswer):
        read_answer(request(), text)


GOOD, WRONG = ISSUER, "https://evil.example"


@pytest.mark.parametrize(
    ("sends_iss", "iss", "accepted"),
    [
        (True, GOOD, True),
        (True, WRONG, False),
        (True, None, False),
        (False, GOOD, True),
        (False, WRONG, False),
        (False, None, True),
        (True, f"{ISSUER}/", False),  # no tolerance here
        (False, f"{ISSUER}/", False),
        (False, "", False),
        (True, "https://AS.example", False),
    ],
)
@pytest.mark.parametrize("kind", ["code", "error"])
def test_the_issuer_of_an_answer(sends_iss: bool, iss: str | None, accepted: bool, kind: str) -> None:
    """RFC 9207, 2.4, for codes and for errors."""
    fields = {kind: "ANSWER", "error_description": "DESCRIBED", "error_uri": "URI", "state": "S"}
    if kind == "code":
        del fields["error_description"], fields["error_uri"]
    text = answer(**fields, **({} if iss is None else {"iss": iss}))
    if accepted and kind == "code":
        assert read_answer(request(sends_iss=sends_iss), text) == "ANSWER"
        return
    with pytest.raises(RefusedByServer if accepted else RejectedAnswer) as caught:
        read_answer(request(sends_iss=sends_iss), text)
    if not accepted:
        assert not any(each in str(caught.value) for each in ("ANSWER", "DESCRIBED", "URI"))


def test_an_error_is_shown_without_control_characters() -> None:
    with pytest.raises(RefusedByServer) as caught:
        read_answer(request(), answer(error="access_denied", error_description="no\x1b[2J", state="S"))
    assert caught.value.error == "access_denied"
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("text", ["abc", "code=abc", f"{REDIRECT}?code=abc", ""])
def test_a_code_alone_is_not_enough_to_paste(text: str) -> None:
    with pytest.raises(UnrelatedAnswer, match="whole address"):
        check_pasted(text)
