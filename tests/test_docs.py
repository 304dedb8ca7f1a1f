"""The documentation matches the code: everything public is described, and everything described exists."""

from __future__ import annotations

import enum
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import attrs
import click

from ctl.cli.app import app
from ctl.cli.errors import EXIT_CODES
from ctl.commands import COMMANDS
from ctl.editors.config_files import BY_NAME
from mcpd.config.definition import json_schema
from mcpd.config.loader import parse_config
from mcpd.model import errors
from mcpd.model.status import FailureKind, ServerState

ROOT = Path(__file__).parent.parent
PAGES = [
    *(ROOT / f"{name}.md" for name in ("README", "CHANGELOG", "CONTRIBUTING", "SECURITY")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
STATES, EXITS, API, REFERENCE, MCPCTL = (
    (ROOT / "docs" / "reference" / f"{name}.md").read_text()
    for name in ("states", "exit-codes", "control-api", "configuration", "mcpctl")
)


def relative(page: Path) -> str:
    return str(page.relative_to(ROOT))


def subcommands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    """Yield every command of mcpctl and its command line, without aliases and hidden ones."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for each in command.list_commands(context):
            child = command.get_command(context, each)
            assert child is not None
            yield from subcommands(child, f"{path} {each}")
    else:
        yield path, command


def test_every_command_is_on_a_page() -> None:
    text = "\n".join(page.read_text() for page in PAGES)
    commands = [path for path, _ in subcommands(app, "mcpctl")]
    assert len(commands) > 30
    assert [each for each in commands if not re.search(rf"(?:`|^\$ ){each}\b", text, re.MULTILINE)] == []


def test_every_command_has_a_heading_on_the_page_of_mcpctl() -> None:
    """That page is the complete list."""
    headings = re.findall(r"^#+ (.+)$", MCPCTL, re.MULTILINE)
    words = {word for heading in headings for word in re.split(r"[,` ]+", heading)}
    assert [each for each, entry in COMMANDS.items() if not entry.hidden and each not in words] == []


def test_no_page_shows_a_command_that_does_not_exist() -> None:
    """Renaming a command includes renaming it on the pages."""
    offenders = []
    for page in PAGES:
        shown = re.findall(
            r"(?:^\$ |`|&& )mcpctl ((?:--(?:host|url|token-file) [^\s`]+ |--[a-z-]+ )*)([a-z][a-z-]*)",
            page.read_text(),
            re.MULTILINE,
        )
        offenders += [f"{relative(page)}: mcpctl {each}" for _, each in shown if each not in COMMANDS]
    assert offenders == []


def test_no_page_shows_a_target_that_make_does_not_have() -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    offenders = []
    for page in PAGES:
        shown = re.findall(r"(?:^\$ |`|&& )make ([a-z][a-z -]*[a-z])", page.read_text(), re.MULTILINE)
        offenders += [
            f"{relative(page)}: make {each}" for line in shown for each in line.split() if each not in targets
        ]
    assert offenders == []


def test_every_option_is_in_the_section_of_its_command() -> None:
    sections: dict[str, str] = {}
    for section in MCPCTL.split("\n## ")[1:]:
        title, _, body = section.partition("\n")
        sections |= dict.fromkeys(title.split(", "), body)
    common = {"--json", "--output", "--help"}
    offenders = []
    for path, command in subcommands(app, "mcpctl"):
        names = path.split()[1:]
        body = sections.get(" ".join(names)) or sections.get(names[0], "")
        for option in command.params:
            if not isinstance(option, click.Option) or option.hidden:
                continue
            spelled = {*option.opts, *option.secondary_opts}
            if not spelled & common and not any(each in body for each in spelled):
                offenders.append(f"{path} {' '.join(spelled)}")
    assert offenders == []


def test_every_link_has_a_target() -> None:
    """Each link leads to an existing file, and to a heading in it."""
    offenders = []
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", page.read_text()):
            file, _, anchor = target.partition("#")
            path = (page.parent / file).resolve() if file else page
            if not path.exists() or (anchor and anchor not in anchors(path.read_text())):
                offenders.append(f"{relative(page)} links to {target}")
    assert offenders == []


def anchors(text: str) -> set[str]:
    """Return the anchors that a forge creates for the headings."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_state_is_in_the_reference() -> None:
    """Users must be able to look up each state in a status."""
    assert [state for state in ServerState if f"| `{state.value}` |" not in STATES] == []


def test_every_kind_of_failure_is_in_the_reference() -> None:
    """The reference also says whether the failure is retried."""
    assert [kind for kind in FailureKind if f"| `{kind.value}` |" not in STATES] == []


def test_every_exit_code_is_in_the_reference() -> None:
    """With the texts of `mcpctl help exit-codes`."""
    assert [code for code, meaning in EXIT_CODES if f"| {code} | {meaning} |" not in EXITS] == []


def error_classes() -> list[type[errors.McpdError]]:
    found = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    return [kind for kind in found if issubclass(kind, errors.McpdError)]


def test_every_error_is_on_the_page_of_the_control_api() -> None:
    """With the codes that programs and scripts receive."""
    classes = error_classes()
    assert len(classes) > 10
    assert [kind for kind in classes if f"| `{kind.code}` | {kind.rpc} | {kind.exit} |" not in API] == []


def test_every_editor_is_on_its_page() -> None:
    """By the name that users type."""
    page = (ROOT / "docs" / "reference" / "editors.md").read_text()
    assert [name for name in BY_NAME if f"`{name}`" not in page] == []


def test_every_setting_is_in_the_reference() -> None:
    """With the names of the published schema, including the synonyms of other products."""
    definitions = json_schema()["$defs"]
    assert isinstance(definitions, dict)
    settings = definitions["settings"]["properties"]
    rows = re.findall(r"^\| (?!-)(.*?) \|.*$(?!\n\|-)", REFERENCE, re.MULTILINE)
    assert [name for name in settings if f"`{name}`" not in ", ".join(rows).split(", ")] == []
    assert len(rows) <= 80  # one that nobody asked for needs none of its own


def test_control_api_reference_matches_the_types() -> None:
    """Run `make docs` after changing a type."""
    assert maker().page(API) == API


def test_a_member_is_described_by_the_sentence_below_it() -> None:
    """The code and the page contain the same text."""

    @attrs.frozen
    class Sample:
        plain: int = 0
        received: str = ""
        """Said once."""

    class Kind(enum.Enum):
        A = "a"
        """The first."""

    assert maker()._meanings(Sample) == {"received": "Said once."}
    assert maker()._meanings(Kind) == {"A": "The first."}


def test_example_on_the_page_matches_the_file() -> None:
    """The example that readers copy is the one that tests/test_examples.py runs."""
    code = (ROOT / "examples/client.py").read_text().split('"""\n\n', 1)[1]
    assert f"```python\n{code}```" in API


def test_manual_pages_match_the_command_lines() -> None:
    """Run `make man` after changing an option."""
    made = maker("make_man").pages()
    assert {name: (ROOT / "man" / name).read_text() for name in made} == made
    for name in COMMANDS:
        assert COMMANDS[name].hidden or f"\n.SS mcpctl {name.replace('-', chr(92) + '-')}" in made["mcpctl.1"]


def maker(name: str = "make_control_api") -> ModuleType:
    """Import a script of docs, which belongs to no package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / f"docs/{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_configuration_on_a_page_is_valid(tmp_path: Path) -> None:
    """People copy them. `…` marks an excerpt, which cannot be checked."""
    checked = 0
    for page in PAGES:
        for block in re.findall(r"^```json\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
            if '"mcpServers"' in block and "…" not in block:
                environ = {
                    "HOME": str(tmp_path),
                    **dict.fromkeys(re.findall(r"\$\{([A-Z_]+)\}", block), "/x"),
                }
                loaded = parse_config(tmp_path / "config.json", block.encode(), environ)
                assert loaded.warnings == (), relative(page)
                checked += 1
    assert checked >= 8


def test_error_messages_of_the_broken_example_are_as_documented() -> None:
    """`mcpd --validate-config` and `mcpctl config validate` print the same lines."""
    file = ROOT / "examples" / "config" / "broken.json"
    environ = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "MCPD_CONFIG": str(file)}
    for command in (["mcpd", "--validate-config"], ["ctl", "config", "validate"]):
        done = subprocess.run(
            [sys.executable, "-m", *command],
            cwd=ROOT,
            env=environ,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 2
        printed = (done.stdout + done.stderr).splitlines()[1:]
        assert len(printed) == 8
        assert "\n".join(printed) in REFERENCE
