"""Client authentication at the token endpoint."""

from __future__ import annotations

import pytest

from mcpd.auth.oauth.registration import (
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
