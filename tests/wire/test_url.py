"""Origins of URLs, references that must stay on one, and URLs without their secrets."""

from __future__ import annotations

import pytest

from mcpd.wire.url import redact_url, resolve_same_origin


@pytest.mark.parametrize(
    ("reference", "resolved"),
    [
        ("/post?a=b", "https://h/post?a=b"),
        ("post", "https://h/sse/post"),
        ("https://H:443/x", "https://H:443/x"),
        ("http://h/x", None),
        ("//other/x", None),
        ("https://h:444/x", None),
        ("https://h:x/", None),
        ("/\u2028", None),
        ("/" + "x" * (2**14 - 10), "https://h/" + "x" * (2**14 - 10)),
        ("/" + "x" * (2**14 - 9), None),
    ],
)
def test_reference_must_have_the_same_origin(reference: str, resolved: str | None) -> None:
    assert resolve_same_origin("https://h/sse/", reference) == resolved


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://u:p@h/x?token=1#f", "https://h/x"),
        ("http://[::1]:80/", "http://[::1]:80/"),
        ("/x", "https://base:1/x"),
        ("http:///x", "http:///x"),
        ("https://h:x/", "an unreadable URL"),
        ("http://[/", "an unreadable URL"),
    ],
)
def test_shown_url_contains_no_secret(url: str, shown: str) -> None:
    assert redact_url(url, "https://base:1/") == shown
