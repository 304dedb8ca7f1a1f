"""Rules for single fields of a definition: exclusive pairs, limits and defaults."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcpd.config.server_specs import parse_servers
from mcpd.config.settings import Settings
from mcpd.model.errors import BadSpec
from mcpd.model.server_spec import RemoteSpec, ServerSpec, StdioSpec

ENVIRON = {"HOME": "/home/ada"}


def parsed(definition: dict[str, object]) -> tuple[ServerSpec, tuple[str, ...]]:
    found = parse_servers(
        {"a": definition}, environ=ENVIRON, settings=Settings(), base_dir=Path("/base"), path="$"
    )
    return found.specs["a"], found.warnings


def stdio(**fields: object) -> StdioSpec:
    spec, _ = parsed({"command": "x", **fields})
    assert isinstance(spec, StdioSpec)
    return spec


def remote(**fields: object) -> RemoteSpec:
    spec, _ = parsed({"url": "https://h/", **fields})
    assert isinstance(spec, RemoteSpec)
    return spec


def problems(definition: dict[str, object]) -> list[str]:
    with pytest.raises(BadSpec) as caught:
        parsed(definition)
    return [f"{problem.path}: {problem.message}; {problem.fix}" for problem in caught.value.problems]


def test_empty_description_is_allowed_and_empty_include_tools_is_a_warning() -> None:
    assert stdio(description="").description == ""
    assert parsed({"command": "x", "description": ""})[1] == ()
    spec, (warning,) = parsed({"command": "x", "includeTools": []})
    assert spec.include_tools == ()
    assert "provides no tools" in warning


def test_every_choice_and_limit_is_passed_on() -> None:
    spec = stdio(era="modern", share="root", concurrency="serial", maxFrame=1024, maxInFlight=1, maxQueued=0)
    assert (spec.era, spec.share, spec.concurrency) == ("modern", "root", "serial")
    assert (spec.max_frame, spec.max_in_flight, spec.max_queued) == (1024, 1, 0)
    for key, value in {"maxFrame": 1023, "maxInFlight": 0, "maxQueued": -1}.items():
        assert len(problems({"command": "x", key: value})) == 1


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ({"search": "60s", "fetch": "2m", "list": "1h"}, {"search": 60, "fetch": 120, "list": 3600}),
        ({}, {}),
        (False, None),
        (None, {}),
    ],
)
def test_lifetimes_of_cached_results(value: object, found: object) -> None:
    assert stdio(cache=value).cache == found


@pytest.mark.parametrize(
    "value", [{"a": "60"}, {"a": "0s"}, {"a": 60}, {"a": "1 h"}, {"a": "9999999h"}, True, "60s"]
)
def test_other_lifetimes_are_refused(value: object) -> None:
    assert len(problems({"command": "x", "cache": value})) == 1


@pytest.mark.parametrize(
    ("definition", "unused"),
    [
        ({"command": "x", "headers": {"A": "b"}, "cwd": "/", "env": {}}, ["$.a.headers"]),
        ({"command": "x", "caFile": "/ca"}, ["$.a.caFile"]),
        ({"url": "http://h/", "cwd": "/", "env": {"A": "b"}, "headers": {}}, ["$.a.env", "$.a.cwd"]),
        ({"url": "http://h/", "cwd": None, "timeout": 5000}, []),
        ({"type": "http", "url": "http://h/", "args": ["x"]}, ["$.a.args"]),
    ],
)
def test_field_of_another_transport_is_a_warning(definition: dict[str, object], unused: list[str]) -> None:
    _, warnings = parsed(definition)
    kind = "stdio" if "command" in definition else "http"
    assert sorted(warnings) == sorted(
        f"{path}: '{path.rpartition('.')[2]}' has no effect for {kind} servers" for path in unused
    )


@pytest.mark.parametrize(
    ("definition", "kind", "is_explicit"),
    [
        ({"url": "http://h/"}, "http", False),
        ({"url": "ws://h/"}, "ws", False),
        ({"url": "wss://h/"}, "ws", False),
        ({"httpUrl": "http://h/"}, "http", False),
        ({"type": "streamable-http", "url": "http://h/"}, "http", True),
        ({"transport": "websocket", "url": "ws://h/"}, "ws", True),
        ({"type": "SSE", "url": "http://h/"}, "sse", True),
        ({"type": "streamableHttp", "httpUrl": "http://h/"}, "http", True),
    ],
)
def test_transport_is_explicit_or_guessed(
    definition: dict[str, object], kind: str, is_explicit: bool
) -> None:
    spec, _ = parsed(definition)
    assert isinstance(spec, RemoteSpec)
    assert (spec.kind, spec.kind_is_explicit) == (kind, is_explicit)


@pytest.mark.parametrize(
    ("definition", "expected"),
    [
        ({"url": "http://h/", "httpUrl": "http://h/"}, "mean the same"),
        ({"command": [""]}, "Missing 'command'"),
        ({"command": "x", "umask": "1"}, "three octal digits"),
        ({"url": "http://h/a b"}, "contains a space or control character"),
        ({"type": "sse", "url": "ws://h/"}, "for sse servers must begin with http: or https:"),
        ({"url": "http://h/", "headers": {"A": "Bearer pässwörd"}}, "not ASCII"),
    ],
)
def test_invalid_combination_or_value_is_one_problem(definition: dict[str, object], expected: str) -> None:
    (problem,) = problems(definition)
    assert expected in problem


def test_problem_of_an_invalid_url_does_not_hide_others() -> None:
    assert len(problems({"url": "h", "caFile": 5, "headers": {"a b": "c"}})) == 3


def test_paths_are_relative_to_the_configuration_and_may_begin_with_home() -> None:
    assert (stdio().cwd, stdio(cwd="w/../v").cwd, stdio(cwd="~").cwd) == (None, "/base/v", "/home/ada")
    assert (remote().ca_file, remote(caFile="ca.pem").ca_file) == (None, "/base/ca.pem")
    assert stdio(command="~/x").command == "/home/ada/x"
    assert stdio(command="bin/x").command == "bin/x"


def test_command_with_arguments_in_one_string_is_a_warning(tmp_path: Path) -> None:
    """Unless there are arguments too, or the string is the path of a file."""
    program = tmp_path / "with space"
    program.touch()
    _, (warning,) = parsed({"command": "npx -y thing"})
    assert "to run 'npx'" in warning
    assert parsed({"command": "npx -y", "args": ["x"]})[1] == ()
    assert parsed({"command": str(program)})[1] == ()
    assert parsed({"command": "npx "})[1] == ()
