"""Which values are secret, and how definitions, lines and messages are masked."""

from __future__ import annotations

import pytest

from mcpd.config.masking import (
    is_secret_name,
    mask_definition,
    quote_line,
    scrub_json,
    secret_values,
)
from mcpd.config.variables import Substitution
from tests.stopwatch import assert_cheap


@pytest.mark.parametrize(
    ("name", "is_secret"),
    [
        ("GITHUB_TOKEN", True),
        ("Authorization", True),
        ("x-api-key", True),
        ("sshKey", True),
        ("DB_PWD", True),
        ("KEYBOARD", False),
        ("path", False),
    ],
)
def test_secret_names_are_recognized(name: str, is_secret: bool) -> None:
    assert is_secret_name(name) is is_secret


@pytest.mark.parametrize(
    ("variable", "is_masked"),
    [("TOKEN", True), ("ANYTHING", True), ("HOME", False), ("XDG_RUNTIME_DIR", False), ("LC_ALL", False)],
)
def test_variables_are_secret_except_those_of_the_session(variable: str, is_masked: bool) -> None:
    found = secret_values({}, [Substitution("$", variable, "some-value")])
    assert found == ({"some-value"} if is_masked else set())


@pytest.mark.parametrize(
    ("definition", "secrets"),
    [
        ({"env": {"TOKEN": "123456"}}, {"123456"}),
        ({"env": {"PLAIN": "123456"}}, set()),
        ({"oauth": {"clientId": "abcdef", "clientSecret": "123456"}}, {"123456"}),
        ({"args": ["--token", "123456", "654321"]}, {"123456"}),
        ({"args": ["--token", "--plain", "123456"]}, set()),
        ({"args": ["--token=123456", "--plain=654321", "--token="]}, {"123456"}),
        ({"headers": {"Authorization": "Bearer 123456"}}, {"123456", "Bearer 123456"}),
        ({"url": "https://u:123456@h/?token=234567&q=345678"}, {"123456", "234567"}),
        ({"url": "https://[::1/?token=234567"}, {"234567"}),
        (
            {"args": ["run", "-e", "API_TOKEN=12, 34", "--env=MY_KEY=234567", "-e", "A=345678"]},
            {"12, 34", "234567"},
        ),
        (
            {"args": ["--header", "X-Api-Key:123456", "--header=Authorization: Bearer 234567"]},
            {"123456", "234567", "Bearer 234567"},
        ),
        (
            {"args": ["-c", "exec API_TOKEN=123456 x"], "env": {"C": "h=1;Password=234567;"}},
            {"123456", "234567"},
        ),
        ({"env": {"HEADERS": '{"Authorization": "Bearer 123456", "Version": "2"}'}}, {"123456"}),
        ({"url": "https://123456@h/", "args": ["https://${TOKEN}@h", "ssh://someone@h"]}, {"123456"}),
        (
            {"args": ["-v", "/my/token:/token:ro", "my-token:latest", "author: nobody", "https://h/key"]},
            set(),
        ),
        ({"args": ["?token=234567"]}, {"234567"}),
        (
            {"url": "https://mcp.example/s/MjA3ZTk1OTgtNzk4MwQx8/mcp", "args": ["http://h/a"]},
            {"MjA3ZTk1OTgtNzk4MwQx8"},
        ),
        ({"url": f"https://h/{'0123456789abcdef' * 2}01234567/a-long-name-of-a-server-v2/mcp"}, set()),
        ({"args": ["use ghp_0123456789 now"]}, {"ghp_0123456789"}),
    ],
)
def test_secret_literals_are_found_and_not_shown(definition: dict[str, object], secrets: set[str]) -> None:
    assert secret_values(definition, []) == secrets
    shown = repr(mask_definition(definition))
    assert not [secret for secret in secrets if secret in shown]
    assert secrets or shown == repr(definition)


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ('  "name": "x" oops', '"name": "x" oops'),
        ('"TOKEN": "hunter22" oops', '"TOKEN": "***'),
        ('"TOKEN"', '"TOKEN"'),
        ("token hunter22", "token***"),
        ("see https://u:pw@h", "see https://u:***@h"),
        ("x ghp_0123456789 y", "x *** y"),
    ],
)
def test_quoted_line_ends_at_the_first_secret(line: str, shown: str) -> None:
    assert quote_line(line) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('{"token": "123456"}', '{"token": "***"}'),
        ('{"token": "12345"}', '{"token": "12345"}'),
        ('{"name": "123456"}', '{"name": "123456"}'),
        ('{"progressToken": "123456"}', '{"progressToken": "123456"}'),
        ('{"text": "{\\"token\\": \\"123456\\"}"}', '{"text": "{\\"token\\": \\"***\\"}"}'),
    ],
)
def test_json_members_are_scrubbed(text: str, shown: str) -> None:
    assert scrub_json(text) == shown


HOSTILE = (
    "?",
    "?a=",
    "://",
    '"',
    '\\"',
    "Bearer ",
    "\\",
    '"a\\',
    "sk-",
    "key= ",
)


@pytest.mark.parametrize("part", HOSTILE)
@pytest.mark.parametrize("start", ["", '"token":"', '"a"', "?", "http://"])
def test_cost_of_masking_is_in_proportion_to_the_text(part: str, start: str) -> None:
    """60,000 question marks took 15 s; here, ten times as many characters take 0.2 s."""
    text = start + part * (600_000 // len(part))

    def mask() -> None:
        scrub_json(text)
        secret_values({"url": text}, ())
        mask_definition({"url": text})
        quote_line(text)

    assert_cheap(mask, 1.5)


def test_long_secret_is_masked() -> None:
    """The stack of a regular expression does not grow with the secret."""
    secret = "\\n".join(["x" * 60] * 10_000)
    assert scrub_json(f'{{"private_key":"{secret}","a":1}}') == '{"private_key":"***","a":1}'
    assert scrub_json('{"a":"5\\" disk","token":"abcdef"}') == '{"a":"5\\" disk","token":"***"}'
    assert scrub_json('5" disk {"token":"abcdef"}') == '5" disk {"token":"***"}'
