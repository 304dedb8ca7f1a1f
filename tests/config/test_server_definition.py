"""The fields of a server definition, and the problems of invalid ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcpd.config.definition_view import is_enabled
from mcpd.config.masking import mask_definition
from mcpd.config.server_specs import ParsedServers, parse_servers
from mcpd.config.settings import Settings
from mcpd.model.errors import BadSpec, Problem
from mcpd.model.server_spec import RemoteSpec, RestartPolicy, ServerSpec, StdioSpec, Timeouts


def deep() -> object:
    """Return a hundred thousand nested lists."""
    nested: object = 1
    for _ in range(100_000):
        nested = [nested]
    return nested


DEEP = deep()
ENVIRON = {"HOME": "/home/ada", "TOKEN": "s3cret-token", "EMPTY": ""}


def parsed(definition: object, settings: Settings | None = None, name: str = "a") -> ParsedServers:
    return parse_servers(
        {name: definition},
        environ=ENVIRON,
        settings=settings or Settings(),
        base_dir=Path("/etc/base"),
        path="$.mcpServers",
    )


def spec(definition: object, settings: Settings | None = None) -> ServerSpec:
    return parsed(definition, settings).specs["a"]


def problems(definition: object, name: str = "a") -> list[Problem]:
    with pytest.raises(BadSpec) as caught:
        parsed(definition, name=name)
    return caught.value.problems


def test_every_field_of_a_stdio_definition_is_parsed() -> None:
    """Names, units and nesting are converted."""
    found = spec(
        {
            "type": "stdio",
            "command": "~/bin/x",
            "args": ["${TOKEN}", "$${B}", "${NOPE:-d}"],
            "env": {"K": "v"},
            "cwd": "~/w",
            "umask": "022",
            "timeout": 5000,
            "connectTimeout": 6000,
            "maxTimeout": 7000.5,
            "toolTimeouts": {"t": 8000},
            "includeTools": ["a*"],
            "excludeTools": ["b"],
            "readOnly": True,
            "trust": True,
            "debug": True,
            "validate": True,
            "disabled": True,
            "lazy": True,
            "description": "d",
            "era": "legacy",
            "maxFrame": 2048,
            "maxInFlight": 3,
            "maxQueued": 4,
            "timeouts": {"ping": 1, "stop": 10},
            "restart": {"base": 2, "intensity": 2},
        }
    )
    assert found == StdioSpec(
        name="a",
        command="/home/ada/bin/x",
        args=("s3cret-token", "${B}", "d"),
        env={"K": "v"},
        cwd="/home/ada/w",
        umask=0o022,
        enabled=False,
        lazy=True,
        include_tools=("a*",),
        exclude_tools=("b",),
        read_only=True,
        trust=True,
        debug=True,
        validate=True,
        description="d",
        era="legacy",
        timeouts=Timeouts(
            call=5, connect=6, call_max=7.0005, tools={"t": 8}, ping=1, ping_idle=3, stop_close=4, stop_term=6
        ),
        restart=RestartPolicy(base=2, intensity=2),
        max_frame=2048,
        max_in_flight=3,
        max_queued=4,
    )


def test_minimal_definition_gets_the_defaults() -> None:
    """The parser has no defaults of its own."""
    assert spec({"command": "x"}) == StdioSpec(name="a", command="x")
    assert spec({"url": "https://h/"}) == RemoteSpec(name="a", kind="http", url="https://h/")


def test_editor_definition_is_accepted_with_warnings() -> None:
    """Fields of other products are mapped if their meaning is clear, and otherwise ignored with a warning."""
    found = parsed(
        {
            "name": "a",
            "type": "local",
            "command": ["npx", "-y"],
            "args": ["z"],
            "environment": {"K": "v"},
            "disabledTools": ["t"],
            "tools": ["*"],
            "alwaysAllow": ["t"],
            "autoApprove": [],
            "envFile": ".env",
            "gallery": True,
            "dev": {},
            "cwd": None,
            "_note": "x",
        }
    )
    assert found.specs["a"] == StdioSpec(
        name="a", command="npx", args=("-y", "z"), env={"K": "v"}, exclude_tools=("t",), include_tools=("*",)
    )
    assert len(found.warnings) == 5
    assert any("envFile" in line and "not read" in line for line in found.warnings)


@pytest.mark.parametrize(
    ("definition", "place", "message", "fix"),
    [
        ({"type": "stdio"}, "", "Missing 'command' in stdio server 'a'", "add 'command'"),
        ({"type": "stdio", "url": "http://h"}, "", "Missing 'command' in stdio server 'a'", "'type': 'http'"),
        ({}, "", "Missing 'command' or 'url'", "add"),
        ({"command": "x", "url": "http://h"}, "", "both", "keep"),
        ({"type": "sdtio", "command": "x"}, ".type", "unknown type 'sdtio'", "did you mean 'stdio'?"),
        ({"comand": "x"}, ".comand", "unknown field 'comand'", "did you mean 'command'?"),
        ({"command": "x", "bearer_token_env_var": "T"}, ".bearer_token_env_var", "unknown", "${VAR}"),
        ({"command": "x", "env": {"P": None}}, ".env.P", "not null", "write a string"),
        ({"command": "x", "env": {"A=B": "c"}}, '.env["A=B"]', "invalid name", "without '='"),
        ({"command": "x", "args": ["a", 1]}, ".args[1]", "must be a string", '"1"'),
        ({"command": "x", "timeout": 0}, ".timeout", "more than 0", "write"),
        ({"command": "x", "timeout": True}, ".timeout", "must be a number", "write"),
        ({"command": "x", "enabled": "yes"}, ".enabled", "true or false", "write"),
        ({"command": "x", "umask": 22}, ".umask", "octal", '"022"'),
        ({"command": "x", "umask": "9"}, ".umask", "octal", '"022"'),
        ({"command": "x", "era": "old"}, ".era", "unknown value 'old'", "legacy"),
        ({"command": "x", "maxFrame": 1}, ".maxFrame", "1024 or more", "write"),
        (
            {"command": "x", "timeouts": {"pings": 1}},
            ".timeouts.pings",
            "unknown field",
            "did you mean 'ping",
        ),
        (
            {"command": "x", "timeouts": {"call": 1}, "timeout": 2000},
            ".timeout",
            "set the same value",
            "keep one",
        ),
        ({"command": "x", "args": ["\ud800"]}, ".args[0]", "unpaired surrogate", "remove"),
        ({"command": "x", "oauth": DEEP}, "", "nested too deeply", "flatten"),
        ({"url": "h/mcp"}, ".url", "must begin with http: or https:", "https://"),
        ({"url": "https://"}, ".url", "no host", "https://"),
        ({"url": "http://a..b/mcp"}, ".url", "not a valid URL", "https://HOST/PATH"),
        ({"url": "http://h", "headers": {"A b": "c"}}, '.headers["A b"]', "invalid header name", "letters"),
        ({"url": "http://h", "headers": {"A": "c\n"}}, ".headers.A", "line break", "remove"),
        ({"command": "x", "args": ["${input:id}"]}, ".args[0]", "${input:id} is not", "${VAR}"),
        ({"command": "x", "args": ["${HOME"]}, ".args[0]", "never closed", "$${"),
        ("x", "", "must be an object", "write"),
    ],
)
def test_invalid_definition_is_refused_with_path_reason_and_fix(
    definition: object, place: str, message: str, fix: str
) -> None:
    """Each error is reported once."""
    found = problems(definition)
    assert len(found) == 1, found
    assert found[0].path == f"$.mcpServers.a{place}"
    assert message in found[0].message
    assert fix in found[0].fix


def test_all_problems_of_all_servers_are_reported_together() -> None:
    """A user can fix all errors in one edit."""
    with pytest.raises(BadSpec) as caught:
        parse_servers(
            {"a": {"type": "stdio", "args": 3}, "b": {"url": 3}, "c d": {}},
            environ={},
            settings=Settings(),
            base_dir=Path("/"),
            path="$",
        )
    assert [p.path for p in caught.value.problems] == ["$.a.args", "$.a", "$.b.url", '$["c d"]']


@pytest.mark.parametrize(
    ("name", "better"),
    [
        ("my server", "my-server"),
        ("", "my-server"),
        ("a/b", "a-b"),
        ("n" * 65, "n" * 64),
    ],
)
def test_invalid_server_name_is_refused_with_a_suggestion(name: str, better: str) -> None:
    """The suggested name is valid."""
    found = problems({"command": "x"}, name=name)
    assert f"'{better}'" in found[0].fix
    assert better in parsed({"command": "x"}, name=better).specs


def test_server_fields_override_the_defaults_in_settings() -> None:
    settings = Settings(debug=True, timeouts=Timeouts(call=9, ping=8), restart=RestartPolicy(cap=7))
    found = spec({"command": "x", "timeout": 3000, "debug": False}, settings)
    assert (found.timeouts.call, found.timeouts.ping, found.restart.cap, found.debug) == (3, 8, 7, False)
    assert spec({"command": "x"}, settings).debug is True


def test_unresolved_reference_is_not_a_secret_value() -> None:
    """If it were masked, the user could not see which secret a server needs."""
    found = parsed(
        {
            "url": "https://u:${secret:PASSWORD}@h/?token=${file:/run/token}",
            "headers": {
                "Authorization": "Bearer ${secret:TOKEN}",
                "X-Api-Key": "${secret:KEY:-otherwise}",
                "Cookie": "session=${credential:cookie}; literal-part",
            },
        }
    )
    assert found.secrets == {"session=", "; literal-part"}


def test_text_around_a_reference_is_masked_but_not_the_reference() -> None:
    """The text may be a password in a URL, a prefix of a token or a default."""
    shown = mask_definition(
        {
            "command": "x",
            "env": {
                "DB": "pg://u:${secret:PW}@h",
                "TOKEN": "abc${secret:X}def",
                "KEY": "${secret:Y:-literal}",
                "PAT": "${secret:Z:-}",
            },
        }
    )
    assert shown["env"] == {
        "DB": "pg://u:${secret:PW}@h",
        "TOKEN": "***${secret:X}***",
        "KEY": "${secret:Y:-***}",
        "PAT": "${secret:Z:-}",
    }


def test_a_masked_definition_shows_references_and_hides_literals() -> None:
    """The output is safe to show on a shared screen."""
    shown = mask_definition(
        {
            "command": "x",
            "args": ["--token", "abc", "--key=abc", "plain"],
            "env": {"A_TOKEN": "${TOKEN}", "B_TOKEN": "literal", "C": "plain", "D_KEY": "${X:-literal}"},
            "url": "https://u:pw@h/?token=abc&q=1",
            "headers": {"Authorization": "Bearer ${TOKEN}", "Cookie": "abc"},
            "oauth": {"clientSecret": "abc"},
        }
    )
    assert shown == {
        "command": "x",
        "args": ["--token", "***", "--key=***", "plain"],
        "env": {"A_TOKEN": "${TOKEN}", "B_TOKEN": "***", "C": "plain", "D_KEY": "${X:-***}"},
        "url": "https://u:***@h/?token=***&q=1",
        "headers": {"Authorization": "Bearer ${TOKEN}", "Cookie": "***"},
        "oauth": {"clientSecret": "***"},
    }


def test_unresolved_definition_shows_no_values() -> None:
    found = spec({"command": "x", "env": {"A": "${secret:A}", "B": "literal-text"}})
    assert "literal-text" not in repr(found.unresolved)
    assert ENVIRON["TOKEN"] not in repr(found.unresolved)


@pytest.mark.parametrize(
    ("definition", "message"),
    [
        ({"command": "x" * 262_144}, "the definition of 'a' has more than 262144 characters"),
        (
            {"command": "x", "args": ["y" * 1000] * 263},
            "the definition of 'a' has more than 262144 characters",
        ),
        (
            {"command": "x", "env": {"n" * 262_144: "y"}},
            "the definition of 'a' has more than 262144 characters",
        ),
        (
            {"command": "x", "args": ["y"] * 10_000},
            "the definition of 'a' is nested too deeply, or has more than 10000 values",
        ),
        ({"command": "${HOME}" * 1001}, "the definition of 'a' has more than 1000 references"),
    ],
    ids=["command", "arguments", "name of a variable", "values", "references"],
)
def test_large_definition_is_refused_and_the_limit_named(definition: object, message: str) -> None:
    """A name of 7 MiB took 1 s to parse, and 43,000 references 1.4 s."""
    (problem,) = problems(definition)
    assert (problem.path, problem.message) == ("$.mcpServers.a", message)


def test_definition_at_the_limits_is_accepted() -> None:
    found = spec({"command": "${HOME}" * 1000, "args": ["y" * 200_000, *["y"] * 9000]})
    assert isinstance(found, StdioSpec)
    assert (len(found.command), len(found.args)) == (9000, 9001)


def timeouts(definition: dict[str, object], base: Timeouts | None = None) -> Timeouts:
    found: ServerSpec = spec({"command": "x", **definition}, Settings(timeouts=base or Timeouts()))
    return found.timeouts


@pytest.mark.parametrize(
    ("values", "call_max"),
    [
        ({}, 1800),
        ({"timeout": 3_600_000}, 3600),
        ({"timeouts": {"call": 3600}}, 3600),
        ({"toolTimeouts": {"t": 7_200_000}, "timeout": 3_600_000}, 7200),
        ({"timeout": 3_600_000, "timeouts": {"ping": 1}}, 3600),
        ({"timeout": 3_600_000, "maxTimeout": 5000}, 5),
        ({"timeout": 3_600_000, "timeouts": {"call_max": 5}}, 5),
    ],
)
def test_limit_of_a_call_grows_with_its_timeout_unless_it_is_set(
    values: dict[str, object], call_max: float
) -> None:
    assert timeouts(values).call_max == call_max


def test_timeouts_change_those_of_the_settings() -> None:
    base = Timeouts(ping=2, ping_idle=6, connect=7)
    changed = timeouts({"connectTimeout": 1000, "timeouts": {"stop": 10}}, base)
    assert changed == Timeouts(ping=2, ping_idle=6, connect=1, stop_close=4, stop_term=6)
    warnings = [parsed({"command": "x", "timeout": ms}).warnings for ms in (1000, 999)]
    assert [len(each) for each in warnings] == [0, 1]
    (problem,) = problems({"command": "x", "connectTimeout": 1000, "timeouts": {"connect": 2}})
    assert problem.path == "$.mcpServers.a.connectTimeout"


@pytest.mark.parametrize(
    ("switches", "expected"),
    [
        ({}, True),
        ({"enabled": None, "disabled": None}, True),
        ({"enabled": True, "disabled": False}, True),
        ({"enabled": False}, False),
        ({"disabled": True}, False),
    ],
)
def test_either_switch_disables_a_server(switches: dict[str, bool], expected: bool) -> None:
    definition = {"command": "x", **switches}
    assert is_enabled(definition) is expected
    assert spec(definition).enabled is expected
