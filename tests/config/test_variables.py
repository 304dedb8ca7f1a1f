"""References in configuration texts: the expansion of each form, and invalid references."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcpd.config.variables import ExpansionResult, Substitution, expand
from mcpd.model.server_spec import SecretReference, UnavailableSecret

ENVIRON = {"HOME": "/home/ada", "TOKEN": "s3cret", "EMPTY": ""}
SECRET = SecretReference("secret", ("S",))
MISSING = UnavailableSecret("it does not exist", "create it", missing=True)
UNREADABLE = UnavailableSecret("it cannot be read", "repair it")


def expanded(value: object, **options: object) -> ExpansionResult:
    return expand(value, ENVIRON, "$", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("plain", "plain"),
        ("${TOKEN}", "s3cret"),
        ("${TOKEN:-default}", "s3cret"),
        ("${NOPE:-${TOKEN}}", "s3cret"),
        ("${NOPE:-}", ""),
        ("${EMPTY:-d}", "d"),
        ("${EMPTY}", ""),
        ("$${TOKEN}", "${TOKEN}"),
        ("a$${TOKEN}${TOKEN}", "a${TOKEN}s3cret"),
        ("$TOKEN } $", "$TOKEN } $"),
        ("${EMPTY:-" * 50 + "x" + "}" * 50, "x"),
    ],
)
def test_variables_are_replaced(text: object, value: object) -> None:
    found = expanded(text)
    assert (found.value, found.problems, found.unresolved) == (value, (), ())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("${NOPE}", "the environment variable NOPE is not set"),
        ("${TOKEN", "never closed"),
        ("${EMPTY:-" * 51 + "}" * 51, "more than 50 are nested"),
        ("${secret:S:-" * 100_000 + "}" * 100_000, "more than 50 are nested"),
        ("${}", "not a reference that mcpd supports"),
        ("${input:id}", "not a reference that mcpd supports"),
        ("${secret:}", "names no secret"),
        ("${credential:.a}", "names no credential"),
        ("${file:}", "names no file"),
        ("${file:a\0b}", "names no file"),
        ("${cmd:}", "names no command"),
        ("${cmd:'x}", "cannot be split into words"),
    ],
)
def test_invalid_reference_is_one_problem(text: str, message: str) -> None:
    (problem,) = expanded(text).problems
    assert message in problem.message


@pytest.mark.parametrize(
    ("text", "kind", "arguments", "shown"),
    [
        ("${secret:S}", "secret", ("S",), "${secret:S}"),
        ("${secret:S:-${TOKEN}}", "secret", ("S",), "${secret:S:-s3cret}"),
        ("${credential:a.b-c}", "credential", ("a.b-c",), "${credential:a.b-c}"),
        ("${file:b/../c}", "file", ("/base/c",), "${file:/base/c}"),
        ("${file:~/c}", "file", ("/home/ada/c",), "${file:/home/ada/c}"),
        ("${cmd:echo a:-b}", "cmd", ("echo", "a:-b"), "${cmd:echo a:-b}"),
        ("${cmd:x ${TOKEN}}", "cmd", ("x", "s3cret"), "${cmd:x s3cret}"),
    ],
)
def test_secret_stays_a_reference_until_it_is_fetched(
    text: str, kind: str, arguments: tuple[str, ...], shown: str
) -> None:
    found = expanded(text, base_dir=Path("/base"))
    assert (found.value, found.problems) == (shown, ())
    ((path, reference),) = found.unresolved
    assert (path, reference.kind, reference.arguments) == ("$", kind, arguments)


@pytest.mark.parametrize(
    ("text", "fetched", "value"),
    [
        ("${secret:S}", "v", "v"),
        ("${secret:S}", "", ""),
        ("${secret:S}", "${TOKEN}", "${TOKEN}"),
        ("${secret:S:-d}", "v", "v"),
        ("${secret:S:-d}", "", "d"),
        ("${secret:S:-${TOKEN}}", MISSING, "s3cret"),
    ],
)
def test_fetched_secret_or_its_default_is_inserted(
    text: str, fetched: str | UnavailableSecret, value: str
) -> None:
    found = expanded(text, fetched={SECRET: fetched})
    assert (found.value, found.problems, found.unresolved) == (value, (), ())


@pytest.mark.parametrize(
    ("text", "fetched"),
    [("${secret:S}", MISSING), ("${secret:S}", UNREADABLE), ("${secret:S:-d}", UNREADABLE)],
)
def test_unavailable_secret_is_a_problem(text: str, fetched: UnavailableSecret) -> None:
    """A default applies only if the secret does not exist."""
    (problem,) = expanded(text, fetched={SECRET: fetched}).problems
    assert (problem.message, problem.fix) == (fetched.message, fetched.fix)


def test_each_substitution_is_recorded_but_its_value_is_not_shown() -> None:
    found = expanded({"a": ["${TOKEN}", "${secret:S}", "${NOPE:-d}"]}, fetched={SECRET: "v"})
    assert found.substitutions == (
        Substitution("$.a[0]", "TOKEN", "s3cret"),
        Substitution("$.a[1]", "secret:S", "v"),
    )
    assert "s3cret" not in repr(found.substitutions)


def test_values_of_all_references_have_a_limit() -> None:
    """Otherwise, a definition of 256 KiB could become one of gigabytes."""
    found = expand(["${LONG}"] * 20, {"LONG": "x" * 100_000}, "$.a")
    assert isinstance(found.value, list)
    assert "".join(found.value) == "x" * 1_000_000
    (problem,) = found.problems
    assert problem.path == "$.a[10]"
    assert problem.message == "with LONG, the values of references have more than 1048576 characters"
