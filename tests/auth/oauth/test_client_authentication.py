"""Client authentication at the token endpoint."""

from __future__ import annotations

import base64
from urllib.parse import unquote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.auth.oauth.registration import (
    ASSERTION_TYPE,
    ClientAuthentication,
    NoCommonMethod,
    choose_method,
)

BASIC, POST, NONE, JWT = "client_secret_basic", "client_secret_post", "none", "private_key_jwt"


def test_basic_is_the_example_of_rfc_6749() -> None:
    """RFC 6749, 2.3.1."""
    client = ClientAuthentication("s6BhdRkqt3", "client_secret_basic", "7Fjfp0ZBr1KtDRbnfVdmIw")
    assert client.headers() == {"Authorization": "Basic czZCaGRSa3F0Mzo3RmpmcDBaQnIxS3REUmJuZlZkbUl3"}
    assert client.parameters() == {}


@given(st.text(min_size=1), st.text(min_size=1))
def test_basic_is_form_encoded_so_that_any_id_and_secret_arrive(name: str, secret: str) -> None:
    client = ClientAuthentication(name.encode("utf-8", "replace").decode(), "client_secret_basic", secret)
    try:
        header = client.headers()["Authorization"]
    except UnicodeEncodeError:  # an unpaired surrogate cannot be in a definition
        return
    pair = base64.b64decode(header.removeprefix("Basic ")).decode().split(":")
    assert [unquote_plus(part) for part in pair] == [client.client_id, secret]


def test_the_other_methods_put_the_id_into_the_body() -> None:
    assert ClientAuthentication("id").parameters() == {"client_id": "id"}
    post = ClientAuthentication("id", "client_secret_post", "secret")
    assert post.parameters() == {"client_id": "id", "client_secret": "secret"}
    assert post.headers() == {}
    signing = ClientAuthentication("id", "private_key_jwt", sign_assertion=lambda: "jwt")
    assert signing.parameters() == {
        "client_id": "id",
        "client_assertion_type": ASSERTION_TYPE,
        "client_assertion": "jwt",
    }


def test_a_method_without_what_it_needs_is_refused() -> None:
    with pytest.raises(ValueError, match="needs a client secret"):
        ClientAuthentication("id", "client_secret_post", "")
    with pytest.raises(ValueError, match="needs a key"):
        ClientAuthentication("id", "private_key_jwt")


def test_a_secret_is_not_shown() -> None:
    assert "hush" not in repr(ClientAuthentication("id", "client_secret_post", "hush"))


@pytest.mark.parametrize(
    ("supported", "secret", "key", "method"),
    [
        (None, False, False, NONE),
        (None, True, False, BASIC),
        ([], True, False, BASIC),
        ([BASIC, POST], True, False, BASIC),
        ([POST, BASIC], True, False, BASIC),
        ([POST], True, False, POST),
        ([NONE], True, False, NONE),
        ([NONE, POST], True, False, POST),
        ([BASIC], False, False, NONE),
        ([NONE, BASIC], False, False, NONE),
        ([JWT, BASIC], True, True, JWT),
        (None, False, True, JWT),
    ],
)
def test_the_method_follows_what_the_server_supports(
    supported: list[str] | None, secret: bool, key: bool, method: str
) -> None:
    assert choose_method(supported, has_secret=secret, has_key=key) == method


def test_no_common_method_is_an_error_that_names_those_of_the_server() -> None:
    with pytest.raises(NoCommonMethod, match="it wants tls_client_auth"):
        choose_method(["tls_client_auth"], has_secret=True)
    with pytest.raises(NoCommonMethod):
        choose_method([BASIC], has_key=True)
