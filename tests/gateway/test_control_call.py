"""Prompt arguments: servers are untrusted."""

from __future__ import annotations

import pytest

from mcpd.gateway.control_call import required_arguments
from mcpd.supervision.catalog_cache import Item

DEEP = b"[" * 2000 + b"]" * 2000


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (b'[{"name":"a","required":true},{"name":"b"},{"name":"c","required":false}]', ["a"]),
        (b'[{"required":true},{"name":"a","required":true}]', ["a"]),
        (b'[{"name":["a"],"required":true}]', []),
        (b'[{"name":null,"required":true},7,null]', []),
        (b'[{"name":"a","required":"yes"}]', []),
        (b'{"a":true}', []),
        (b"null", []),
        (DEEP, []),
    ],
)
def test_malformed_prompt_arguments_are_ignored(arguments: bytes, names: list[str]) -> None:
    """An exception here used to end the client's connection."""
    assert required_arguments(Item("greet", b'{"name":"greet","arguments":%b}' % arguments)) == names
