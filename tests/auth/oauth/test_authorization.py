"""The authorization request, the answers at the redirect URI, and which scopes are requested."""

from __future__ import annotations

from urllib.parse import parse_qs, urlencode, urlsplit

import attrs
import pytest

from mcpd.auth.oauth.authorization import (
    AnswerError,
    AuthorizationRequest,
    UnrelatedAnswer,
    build_request,
    check_pasted,
    code_challenge,
    first_request,
    more_scopes,
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
    with pytest.raises(AnswerError) as caught:
        read_answer(request(sends_iss=sends_iss), text)
    if accepted:
        assert "ANSWER" in str(caught.value)
    else:
        assert not any(each in str(caught.value) for each in ("ANSWER", "DESCRIBED", "URI"))


def test_an_error_is_shown_without_control_characters() -> None:
    with pytest.raises(AnswerError) as caught:
        read_answer(request(), answer(error="access_denied", error_description="no\x1b[2J", state="S"))
    assert "access_denied" in str(caught.value)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("text", ["abc", "code=abc", f"{REDIRECT}?code=abc", ""])
def test_a_code_alone_is_not_enough_to_paste(text: str) -> None:
    with pytest.raises(UnrelatedAnswer, match="whole address"):
        check_pasted(text)


# ── scopes ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("configured", "challenge", "resource", "server", "wanted"),
    [
        (None, ("a",), ("a", "b"), ("x",), ("a",)),
        (None, None, ("a", "b"), ("x",), ("a", "b")),
        (None, (), ("a", "b"), (), ("a", "b")),
        (None, None, None, ("x", "openid"), None),
        (None, None, (), (), None),
        (("c",), ("a",), ("b",), (), ("c",)),
        ((), ("a",), ("b",), (), None),
        (None, ("a",), None, ("a", "offline_access"), ("a", "offline_access")),
        (None, ("a", "offline_access"), None, ("offline_access",), ("a", "offline_access")),
        (None, ("a",), None, ("a",), ("a",)),
        (("c",), None, None, ("offline_access",), ("c",)),
        (None, None, None, ("offline_access",), None),
    ],
)
def test_first_request(
    configured: tuple[str, ...] | None,
    challenge: tuple[str, ...] | None,
    resource: tuple[str, ...] | None,
    server: tuple[str, ...],
    wanted: tuple[str, ...] | None,
) -> None:
    found = first_request(configured=configured, challenge=challenge, resource=resource, server=server)
    assert found == wanted


def test_a_step_up_asks_for_the_union_in_order() -> None:
    assert more_scopes(("a", "b"), None, ("b", "c")) == ("a", "b", "c")
