"""References in the syntax of each editor: translated, plain text, or refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctl.editors.config_files import BY_NAME, GENERIC
from ctl.editors.variables import UnusableEntry, VariableTranslator, parse_dotenv, read_dotenv
from mcpd.config.variables import expand


def translator(editor: str, *, workspace: bool = True) -> VariableTranslator:
    kinds = GENERIC.variables if editor == "file" else BY_NAME[editor].variables
    return VariableTranslator(kinds, Path("/home/ann"), Path("/w/shop") if workspace else None)


@pytest.mark.parametrize(
    ("editor", "theirs", "ours"),
    [
        ("claude-code", "${A}", "${A}"),
        ("claude-code", "${A:-b}", "${A:-b}"),
        ("claude-code", "$A", "$A"),
        ("claude-code", "${env:A}", "$${env:A}"),
        ("claude-code", "${CLAUDE_PROJECT_DIR}/x", "/w/shop/x"),
        ("cursor", "${env:A}-${env:B}", "${A}-${B}"),
        ("cursor", "${A}", "$${A}"),
        ("cursor", "${workspaceFolder}${/}x${pathSeparator}y", "/w/shop/x/y"),
        ("cursor", "${userHome}", "${HOME}"),
        ("vscode", "${workspaceFolder:api}", "/w/shop"),
        ("windsurf", "${workspaceFolder}", "$${workspaceFolder}"),
        ("gemini", "$A/${B}", "${A}/${B}"),
        ("gemini", "$5", "$5"),
        ("opencode", "{env:A}", "${A}"),
        ("opencode", "${A}", "$${A}"),
        ("codex", "${A} $A", "$${A} $A"),
        ("zed", "${A", "$${A"),
        ("continue", "${{ secrets.a-b }}", "${secret:A_B}"),
        ("mcporter", "$env:A", "${A}"),
        ("mcpproxy", "${keyring:x}", "${secret:X}"),
    ],
)
def test_references_are_translated_and_plain_text_is_kept(editor: str, theirs: str, ours: str) -> None:
    """What an editor does not know is plain text, so a `${` in it must not mean anything to mcpd."""
    assert translator(editor).translate(theirs) == ours


@pytest.mark.parametrize(
    ("editor", "theirs", "file", "ours"),
    [
        ("windsurf", "${file:~/.k}", ".k", "${file:%s/.k}"),
        ("windsurf", "x ${file:%s/.k}", ".k", "x ${file:%s/.k}"),
        ("opencode", "{file:./keys/k.txt}", "conf/keys/k.txt", "${file:%s/conf/keys/k.txt}"),
        ("opencode", "{file:../a:-b}", "a:-b", "${secret:A_B}"),
    ],
)
def test_file_reference_keeps_its_path(
    editor: str, theirs: str, file: str, ours: str, tmp_path: Path
) -> None:
    """A copy of its content would become outdated."""
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("s3cret\n")
    work = VariableTranslator(BY_NAME[editor].variables, tmp_path, None, tmp_path / "conf")
    assert work.translate(theirs.replace("%s", str(tmp_path))) == ours.replace("%s", str(tmp_path))
    assert [one.value for one in work.needed_secrets] == (["s3cret"] if "secret" in ours else [])


@pytest.mark.parametrize(
    ("editor", "text", "why"),
    [
        ("vscode", "${config:a.b}", "only the editor knows"),
        ("vscode", "${command:pick}", "only the editor knows"),
        ("cursor", "${workspaceFolder}", "differs in every window"),
        ("claude-code", "${CLAUDE_PLUGIN_ROOT}", "only Claude Code knows"),
        ("cursor", "${env:a b}", "is not a valid variable name"),
        ("vscode", "$${env:A}", "immediately before a variable reference"),
        ("opencode", "{file:/nowhere}", "empty or unreadable"),
    ],
)
def test_value_known_only_to_the_editor_prevents_the_import(editor: str, text: str, why: str) -> None:
    """A wrong value would be worse."""
    with pytest.raises(UnusableEntry, match=why):
        translator(editor, workspace=False).translate(text)


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")))
def test_text_without_references_reaches_the_server_unchanged(text: str) -> None:
    """Also after mcpd has expanded it."""
    expanded = expand(translator("zed").translate(text), {}, "$")
    assert (expanded.value, expanded.problems) == (text, ())


def test_env_files_are_read_as_editors_do() -> None:
    """Quotes, comments, `export`, empty values and invalid lines."""
    text = 'A=1\n# no\nexport B = two # remark\nC=\'x # y\'\nD="a\\nb\\""\nE=\nF=a#b\r\n9=no\nnothing\n'
    assert parse_dotenv(text) == {
        "A": "1",
        "B": "two",
        "C": "x # y",
        "D": 'a\nb"',
        "E": "",
        "F": "a#b",
    }


def test_device_in_place_of_an_env_file_is_not_read(tmp_path: Path) -> None:
    """An editor's file in a project names the file, and a project may come from anybody."""
    file = tmp_path / ".env"
    file.write_bytes(b"A='1'\r\nB=2\r\n")
    assert read_dotenv(file) == {"A": "1", "B": "2"}
    file.unlink()
    file.symlink_to("/dev/zero")
    assert read_dotenv(file) is None
