"""The daemon's settings: addresses, defaults, profiles and invalid values."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcpd.config import settings as settings_module
from mcpd.config.http import Address, HttpSettings, parse_address
from mcpd.config.settings import Settings, parse_settings
from mcpd.model.errors import Problem
from mcpd.model.policy import Profile
from mcpd.model.server_spec import RestartPolicy, Timeouts
from mcpd.model.tool_names import ClientStyle, NameStyle


def parsed(values: dict[str, object]) -> tuple[Settings, list[Problem]]:
    problems: list[Problem] = []
    found = parse_settings(
        values, environ={"HOME": "/home/ada"}, path="$.settings", problems=problems, warnings=[]
    )
    return found, problems


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:8931", "127.0.0.1", 8931),
        ("127.0.0.2:0", "127.0.0.2", 0),
        ("LocalHost:65535", "127.0.0.1", 65535),
        ("[::1]:80", "::1", 80),
        ("0.0.0.0:80", "0.0.0.0", 80),
        ("mcp.example.com:443", "mcp.example.com", 443),
    ],
)
def test_address_is_accepted(text: str, host: str, port: int) -> None:
    assert parse_address(text) == Address(host, port)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("8931", "it must be HOST:PORT"),
        ("localhost:http", "it must be HOST:PORT"),
        ("localhost:\u0663", "it must be HOST:PORT"),
        ("localhost:65536", "it must be HOST:PORT"),
        ("::1:80", "it must be HOST:PORT"),
        (":80", "it must be HOST:PORT"),
    ],
)
def test_other_address_is_refused_with_the_reason(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_address(text)


def test_every_setting_is_passed_on() -> None:
    found, problems = parsed(
        {
            "env": {"A": "${secret:TOKEN}"},
            "timeout": 5000,
            "debug": True,
            "validate": True,
            "logLevel": "error",
            "http": "localhost:80",
            "maxStarts": 1,
            "toolNames": "prefix",
            "clientToolNames": "namespace",
            "watch": False,
            "allowCommands": True,
            "timeouts": {"ping": 1},
            "restart": {"cap": 1},
        }
    )
    assert problems == []
    assert found == Settings(
        env={"A": "${secret:TOKEN}"},
        timeouts=Timeouts(call=5, ping=1, ping_idle=3),
        restart=RestartPolicy(cap=1),
        debug=True,
        validate=True,
        log_level="error",
        http=HttpSettings(listen=Address("127.0.0.1", 80)),
        max_starts=1,
        tool_names=NameStyle("prefix"),
        client_tool_names=ClientStyle("namespace"),
        watch=False,
        allow_commands=True,
    )
    assert parsed({"debug": False, "watch": True, "allowCommands": False})[0] == Settings()


@pytest.mark.parametrize(
    ("values", "path"),
    [
        ({"debg": True}, "$.settings.debg"),
        ({"http": "0.0.0.0:80"}, "$.settings.http"),
        ({"http": {"listen": "10.0.0.1:80"}}, "$.settings.http"),
        ({"http": {"tls": "balancer"}}, "$.settings.http"),
        ({"http": {"listen": "127.0.0.1:80", "tls": "none"}}, "$.settings.http.tls"),
        ({"http": {"listen": "127.0.0.1:80", "tls": {"key": "k"}}}, "$.settings.http.tls"),
        ({"http": {"listen": "127.0.0.1:80", "jwt": {"issuer": "https://a"}}}, "$.settings.http.jwt"),
        ({"http": {"listen": "127.0.0.1:80", "profiles": {"*": "a"}}}, "$.settings.http"),
        ({"openTelemetry": "127.0.0.1:4318"}, "$.settings.openTelemetry"),
        ({"openTelemetry": "http://me:secret@127.0.0.1:4318"}, "$.settings.openTelemetry"),
        ({"http": "${NOPE}"}, "$.settings.http"),
        ({"env": {"A": 1}}, "$.settings.env.A"),
        ({"maxStarts": 0}, "$.settings.maxStarts"),
        ({"profiles": {"a": {"server": []}}}, "$.settings.profiles.a.server"),
        ({"profiles": {"a": {"validate": "yes"}}}, "$.settings.profiles.a.validate"),
        ({"profileByDirectory": {"rel": "*"}}, "$.settings.profileByDirectory.rel"),
        ({"profileByDirectory": {"/w": "none"}}, '$.settings.profileByDirectory["/w"]'),
    ],
)
def test_invalid_setting_is_a_problem(values: dict[str, object], path: str) -> None:
    assert path in [problem.path for problem in parsed(values)[1]]


def test_profiles_are_parsed_with_their_defaults() -> None:
    full = {
        "servers": ["a"],
        "includeTools": ["i"],
        "excludeTools": ["e"],
        "clientToolNames": "namespace",
        "validate": False,
    }
    found, problems = parsed({"profiles": {"empty": {}, "full": full}})
    assert problems == []
    assert found.profiles == {
        "empty": Profile(name="empty"),
        "full": Profile(
            name="full",
            servers=("a",),
            include_tools=("i",),
            exclude_tools=("e",),
            style=ClientStyle("namespace"),
            validate=False,
        ),
    }


def test_rules_name_a_profile_or_everything() -> None:
    rules = {"~/w": "work", "/all": "*"}
    found, problems = parsed({"profiles": {"work": {}}, "profileByDirectory": rules})
    assert problems == []
    assert found.profile_by_directory == {"/home/ada/w": "work", "/all": "*"}
    _, (problem,) = parsed({"profiles": {"work": {}}, "profileByDirectory": {"/w": "wrok"}})
    assert problem.fix == "did you mean 'work'?"
    _, (problem,) = parsed({"profileByDirectory": {"/w": "work"}})
    assert "add it to 'profiles'" in problem.fix


@pytest.mark.parametrize(
    ("pattern", "resolved"),
    [("in", "in"), ("in/*", "in/*"), ("in/a*/b", "in/a*/b"), ("in/a?", "in/a?"), ("in/?/*", "in/?/*")],
)
def test_rules_apply_to_directories_without_symbolic_links(
    pattern: str, resolved: str, tmp_path: Path
) -> None:
    """Links before the first wildcard are resolved; both spellings are kept."""
    real = tmp_path.resolve() / "real"
    (real / "in").mkdir(parents=True)
    link = tmp_path / "link"
    link.symlink_to(real)
    found, _ = parsed({"profileByDirectory": {f"{link}/{pattern}": "*"}})
    assert found.profile_by_directory.keys() == {f"{link}/{pattern}", f"{real}/{resolved}"}


@pytest.mark.parametrize(("is_installed", "warnings"), [(True, 0), (False, 1)])
def test_missing_extra_for_open_telemetry_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, is_installed: bool, warnings: int
) -> None:
    monkeypatch.setattr(settings_module, "find_spec", lambda name: object() if is_installed else None)
    problems: list[Problem] = []
    found: list[str] = []
    settings = parse_settings(
        {"openTelemetry": "https://collector.example/otlp"},
        environ={},
        path="$.settings",
        problems=problems,
        warnings=found,
    )
    assert settings.otlp_endpoint == "https://collector.example/otlp"
    assert (problems, len(found)) == ([], warnings)
    assert all("extra `otel`" in each for each in found)
