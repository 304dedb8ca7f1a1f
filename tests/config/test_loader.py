"""Locations, precedence, formats and layouts of the configuration, and the errors of `load`."""

from __future__ import annotations

import hashlib
import json
import os
import tracemalloc
from itertools import pairwise
from pathlib import Path

import attrs
import pytest

from mcpd.config.loader import MAX_FILE_SIZE, MAX_SLOW_SIZE, load, parse_config, parse_text
from mcpd.model.errors import BadSpec
from tests.stopwatch import assert_cheap

EXAMPLES = Path(__file__).parents[2] / "examples" / "config"


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def server(name: str) -> str:
    return json.dumps({"mcpServers": {name: {"command": "x"}}})


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "xdg")}


def refused(flag: Path | None, environ: dict[str, str]) -> BadSpec:
    with pytest.raises(BadSpec) as caught:
        load(flag, environ)
    return caught.value


def test_the_variable_wins_over_the_flag_over_mcpd_config_over_the_default(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    """Without the winner, the next source applies."""
    default = write(tmp_path / "xdg/mcpd/config.json", server("default"))
    named = write(tmp_path / "named.json", server("named"))
    flag = write(tmp_path / "flag.json", server("flag"))
    everything = {**environ, "MCPD_CONFIG": str(named), "MCPD_SERVERS": '[{"name": "list", "command": "x"}]'}

    found = load(flag, everything)
    assert (list(found.specs), found.source, found.path) == (["list"], "$MCPD_SERVERS", flag)
    del everything["MCPD_SERVERS"]
    assert list(load(flag, everything).specs) == ["flag"]
    assert list(load(None, everything).specs) == ["named"]
    del everything["MCPD_CONFIG"]
    found = load(None, everything)
    assert (list(found.specs), found.source) == (["default"], str(default))
    assert found.digest == hashlib.sha256(default.read_bytes()).hexdigest()


def test_missing_configuration_is_only_a_warning(environ: dict[str, str]) -> None:
    """The daemon can start without any configuration file."""
    found = load(None, environ)
    assert (found.specs, found.source, found.digest) == ({}, "none", "")
    assert found.path == Path(environ["XDG_CONFIG_HOME"]) / "mcpd/config.json"
    assert "mcpctl add" in found.warnings[0]


@pytest.mark.parametrize("named_by", ["flag", "MCPD_CONFIG"])
def test_missing_named_file_is_an_error(named_by: str, tmp_path: Path, environ: dict[str, str]) -> None:
    """A typo in a path must not look like an empty configuration."""
    path = tmp_path / "nope.json"
    error = (
        refused(path, environ) if named_by == "flag" else refused(None, {**environ, "MCPD_CONFIG": str(path)})
    )
    assert str(path) in error.problems[0].message
    assert error.problems[0].fix


@pytest.mark.parametrize("text", ["", " \n"])
def test_empty_json_file_is_an_error(text: str, tmp_path: Path, environ: dict[str, str]) -> None:
    """A save that failed, such as on a full disk, must not remove all servers."""
    error = refused(write(tmp_path / "config.json", text), environ)
    assert error.problems[0].message == "the file is empty"


def test_two_default_files_are_an_error_naming_both(tmp_path: Path, environ: dict[str, str]) -> None:
    """mcpd cannot guess which one the user means."""
    one = write(tmp_path / "xdg/mcpd/config.json", "{}")
    two = write(tmp_path / "xdg/mcpd/config.yaml", "")
    message = refused(None, environ).problems[0].message
    assert str(one) in message
    assert str(two) in message


@pytest.mark.parametrize(
    ("name", "text", "line", "quoted"),
    [
        ("c.json", '{\n  // hi\n  "mcpServers": {\n    "a" 1\n  }\n}', 4, '"a" 1'),
        ("c.toml", '[mcpServers.a]\ncommand = "x"\nargs = [1 2]\n', 3, "args"),
        ("c.yaml", "mcpServers:\n  a:\n    args: [x\nsettings: {}\n", 4, "settings"),
        ("c.json", '{"a": 1} /* for ever', 1, "for ever"),
    ],
)
def test_a_syntax_error_is_shown_with_file_line_column_and_text(
    name: str, text: str, line: int, quoted: str, tmp_path: Path, environ: dict[str, str]
) -> None:
    """Comments before the error do not change its position."""
    path = write(tmp_path / name, text)
    problem = refused(path, environ).problems[0]
    assert problem.path.startswith(f"{path}:{line}:")
    assert quoted in problem.message


@pytest.mark.parametrize("name", ["config.json", "config.toml", "config.yaml"])
def test_error_does_not_keep_the_text_in_memory(name: str, tmp_path: Path, environ: dict[str, str]) -> None:
    """The parsers' errors refer to the text, and their frames to several copies of it."""
    file = tmp_path / name
    file.write_text('{"a": [[}')
    with pytest.raises(BadSpec) as refused:
        load(file, environ)
    assert refused.value.__context__ is None
    assert refused.value.__cause__ is None
    inner = [frame.name for frame in refused.traceback][1:]
    assert inner == ["load"]


def test_the_quoted_line_of_a_syntax_error_holds_no_secret(tmp_path: Path, environ: dict[str, str]) -> None:
    """The message is written to logs and the status."""
    path = write(tmp_path / "c.json", '{"mcpServers": {"a": {"env": {"TOKEN": "hunter22" oops}}}}')
    assert "hunter22" not in str(refused(path, environ))


def test_both_layouts_and_all_formats_are_equivalent(tmp_path: Path, environ: dict[str, str]) -> None:
    """Six spellings of one configuration give equal definitions."""
    texts = {
        "a.json": '\ufeff{"mcpServers": {"a": {"command": "x", "args": ["y"],}}, /* c */'
        ' "settings": {"timeout": 5000}}',
        "b.json": '{"mcp": {"servers": {"a": {"command": "x", "args": ["y"]}},'
        ' "globalSettings": {"timeout": 5000}}}',
        "c.json": '{"mcp": {"servers": [{"name": "a", "command": ["x", "y"]}],'
        ' "globalSettings": {"timeout": 5000}}}',
        "d.yaml": "mcpServers:\n  a:\n    command: x\n    args: [y]\nsettings: {timeout: 5000}\n",
        "f.yaml": "services:\n  mcp:\n  - {name: a, command: x, args: [y]}\nsettings: {timeout: 5000}\n",
        "e.toml": '[settings]\ntimeout = 5000\n[mcpServers.a]\ncommand = "x"\nargs = ["y"]\n',
    }
    found = [load(write(tmp_path / name, text), environ).specs for name, text in texts.items()]
    assert all(specs == found[0] for specs in found)
    assert found[0]["a"].timeouts.call == 5.0


def test_mcp_enabled_false_disables_every_server(tmp_path: Path, environ: dict[str, str]) -> None:
    """The servers stay known, so that a user can enable one."""
    path = write(tmp_path / "c.json", '{"mcp": {"enabled": false, "servers": {"a": {"command": "x"}}}}')
    assert load(path, environ).specs["a"].enabled is False


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        (
            '{"mcpServers": {"a": {"command": "x"}, "a": {"command": "y"}}}',
            "$.mcpServers.a",
            "more than once",
        ),
        ('{"servers": {}}', "$.servers", "rename it to 'mcpServers'"),
        ('{"mcpserver": {}}', "$.mcpserver", "did you mean 'mcpServers'?"),
        ('{"mcp": {}, "mcpServers": {}}', "$.mcp", "both"),
        ('{"services": {"mcp": []}, "mcpServers": {}}', "$.services", "two places"),
        ('{"services": {"web": {}}}', "$.services.web", "unknown field"),
        ('{"mcp": {"git": {}}}', "$.mcp.git", "unknown field"),
        ('{"name": "a package", "version": "1"}', "$", "not a configuration of mcpd"),
        ('{"mcpServers": []}', "", ""),
        ('{"settings": {"maxStarts": 0}}', "$.settings.maxStarts", "1 or more"),
        ("[" * 100_000, ":1:1", "nested too deeply"),
        ('{"settings": {"timeout": NaN}}', "", "not a JSON number"),
    ],
)
def test_invalid_document_is_refused_with_its_path(
    text: str, place: str, words: str, tmp_path: Path, environ: dict[str, str]
) -> None:
    """No member that resembles a known one is silently ignored."""
    path = write(tmp_path / "c.json", text)
    if not (place or words):
        assert load(path, environ).specs == {}
        return
    error = refused(path, environ)
    assert error.source == str(path)
    assert any((place in str(p.path) and words in str(p)) for p in error.problems), error.problems


@pytest.mark.parametrize(
    "text",
    [
        "mcpServers: &a\n  x: *a\n",
        "a: &a [x, x, x, x, x, x, x, x, x]\n"
        + "".join(f"{c}: &{c} [{', '.join([f'*{p}'] * 9)}]\n" for p, c in pairwise("abcdefgh")),
    ],
    ids=["recursive", "unbounded"],
)
def test_endless_yaml_is_refused(text: str, tmp_path: Path, environ: dict[str, str]) -> None:
    """Aliases can make a small file unbounded."""
    assert "nested too deeply" in str(refused(write(tmp_path / "c.yaml", text), environ))


def test_other_keys_in_an_editors_file_are_ignored_with_a_warning(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    """`--config` may name an editor's file with unrelated content."""
    path = write(tmp_path / "c.json", '{"globalShortcut": "x", "mcpServers": {}}')
    assert "globalShortcut" in load(path, environ).warnings[0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not valid JSON"),
        ('{"a": {}}', "expected a list"),
        ('[{"command": "x"}]', "no 'name'"),
        ('[{"name": "a", "command": "x"}, {"name": "a", "command": "y"}]', "defined twice"),
    ],
)
def test_a_bad_list_in_the_variable_is_refused(text: str, words: str, environ: dict[str, str]) -> None:
    """The error names the variable as its source."""
    error = refused(None, {**environ, "MCPD_SERVERS": text})
    assert error.source == "$MCPD_SERVERS"
    assert words in str(error)


def test_unreadable_file_is_refused(tmp_path: Path, environ: dict[str, str]) -> None:
    """Directories, pipes, devices, other encodings and other suffixes. A pipe must not block."""
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "zero.json").symlink_to("/dev/zero")
    (tmp_path / "huge.json").write_bytes(b" " * (MAX_FILE_SIZE + 1))
    (tmp_path / "dir.json").mkdir()
    (tmp_path / "latin.json").write_bytes(b'{"mcpServers": {}} // caf\xe9')
    write(tmp_path / "c.conf", "{}")
    for name, words in {
        "pipe.json": "not a regular file",
        "zero.json": "not a regular file",
        "huge.json": f"more than {MAX_FILE_SIZE} bytes",
        "dir.json": "a directory",
        "latin.json": "not UTF-8",
        "c.conf": "does not name a supported format",
    }.items():
        assert words in str(refused(tmp_path / name, environ))


@pytest.mark.parametrize("path", sorted(EXAMPLES.iterdir()), ids=lambda path: path.name)
def test_examples_load_as_documented(path: Path, environ: dict[str, str]) -> None:
    """Every example loads without a warning, and the broken one has many problems."""
    if path.stem == "broken":
        assert len(refused(path, environ).problems) == 8
    else:
        found = load(path, environ)
        assert found.specs
        assert found.warnings == ()


def test_commands_need_a_file_that_others_cannot_write(tmp_path: Path, environ: dict[str, str]) -> None:
    """A missing file will be created with such a mode."""
    allowed = b'{"settings": {"allowCommands": true}}'
    path = tmp_path / "c.json"
    assert parse_config(path, allowed, environ).settings.allow_commands
    path.touch(0o600)
    assert parse_config(path, allowed, environ).settings.allow_commands
    path.chmod(0o620)
    assert not parse_config(path, b"{}", environ).settings.allow_commands
    with pytest.raises(BadSpec, match="other users can write"):
        parse_config(path, allowed, environ)


def test_loaded_configuration_shows_no_secret(environ: dict[str, str]) -> None:
    text = b'{"mcpServers": {"a": {"command": "x", "env": {"TOKEN": "hunter22"}}}}'
    found = parse_config(Path("/none/c.json"), text, environ)
    assert found.secrets == {"hunter22"}
    assert "hunter22" not in repr(attrs.evolve(found, specs={}, definitions={}))


MIB = 1024 * 1024
SLOW_DOCUMENTS = [
    ("JSON", "[" * 3 * MIB, "nested too deeply"),
    ("JSON", '{"a":' * MIB, "nested too deeply"),
    ("YAML", "[" * 200_000, "nested too deeply"),
    ("YAML", "{a: " * 60_000, "nested too deeply"),
    ("YAML", "- a\n" * MIB, "a YAML file has at most 262144"),
    ("TOML", "a." * 100_000, "100 parts"),
    ("TOML", "x" + " .\ty" * 50_000 + " = 1", "100 parts"),
    ("TOML", "x = [" * MIB, "a TOML file has at most 262144"),
    ("JSON", "{" + ",".join(f'"k{number % 50_000}":1' for number in range(100_000)) + "}", "more than once"),
]


@pytest.mark.parametrize(("kind", "text", "problem"), SLOW_DOCUMENTS)
def test_document_that_is_slow_to_parse_is_refused(kind: str, text: str, problem: str) -> None:
    """The parsers took up to 150 s for these."""

    def parse() -> None:
        with pytest.raises(BadSpec, match=problem) as error:
            parse_text(text, kind, "source")
        assert len(str(error.value.problems[0])) < 500

    assert_cheap(parse, 3.0)


def test_error_in_a_long_file_takes_little_memory() -> None:
    """A list of its lines would take as much again, and leave the heap in pieces after each reload."""
    text = "//\n" * 100_000 + '{"mcpServers": {}'
    tracemalloc.start()
    try:
        with pytest.raises(BadSpec, match=r'in `\{"mcpServers": \{\}` @ file:100001:18'):
            parse_text(text, "JSON", "file")
        assert tracemalloc.get_traced_memory()[1] < 14 * len(text)
    finally:
        tracemalloc.stop()


def test_yaml_of_the_largest_size_is_read() -> None:
    assert parse_text("a: 1\n#" + "x" * (MAX_SLOW_SIZE - 6), "YAML", "source") == {"a": 1}
