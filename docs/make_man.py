"""Generate man/mcpctl.1 and man/mcpd.1 from the definitions of the command lines (`make man`)."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

import click

from ctl.cli.app import app
from ctl.cli.errors import EXIT_CODES
from ctl.commands import COMMANDS, SECTIONS
from mcpd import __version__
from mcpd.main import argument_parser

MAN = Path(__file__).parent.parent / "man"

CTL_ENVIRONMENT = (
    ("MCPD_SOCKET", "Path of the daemon's socket, like --socket."),
    ("MCPD_NO_START=1", "Do not start the daemon automatically, like --no-start."),
    ("MCPD_TOKEN_FILE", "The file with the token for --url, like --token-file."),
    ("MCPCTL_OUTPUT=json", "The same as --json."),
    ("NO_COLOR, FORCE_COLOR", "Disable or force colors."),
    ("TRACEPARENT, TRACESTATE, BAGGAGE", "W3C trace context that mcpctl call forwards to the server."),
    ("VISUAL, EDITOR", "Editor for mcpctl edit."),
)
D_ENVIRONMENT = (
    ("MCPD_CONFIG", "Path of the configuration file."),
    ("MCPD_SERVERS", "JSON list of definitions, each with a name. It overrides all configuration files."),
    ("MCPD_SOCKET", "Path of the socket, like --socket."),
    ("MCPD_DEBUG=1", "Log all messages, like --debug."),
    (
        "CREDENTIALS_DIRECTORY",
        "Set by systemd: the directory that contains the values of ${credential:NAME}.",
    ),
)
FILES = (
    (
        "~/.config/mcpd/config.json",
        "Servers and settings. The suffixes .jsonc, .toml, .yaml and .yml also work.",
    ),
    ("~/.config/mcpd/secrets.json", "Secrets stored by mcpctl secret set, mode 0600."),
    ("~/.local/state/mcpd/", "Persistent state, the history, and the logs of the servers."),
    ("$XDG_RUNTIME_DIR/mcpd/mcpd.sock", "The socket of the daemon."),
)
D_EXITS = (
    (0, "the daemon stopped in an orderly way"),
    (2, "the configuration or the command line is wrong"),
    (3, "another daemon owns the socket"),
    (78, "a directory or path cannot be used"),
)


def pages() -> dict[str, str]:
    """Return the text of each page by file name."""
    return {"mcpctl.1": "\n".join(_mcpctl()) + "\n", "mcpd.1": "\n".join(_mcpd()) + "\n"}


def _mcpctl() -> Iterator[str]:
    yield from _head("mcpctl", "control mcpd, the daemon that runs and shares your MCP servers")
    yield from (".SH SYNOPSIS", ".B mcpctl", "[OPTION]... COMMAND [ARGUMENT]...")
    yield from (".SH DESCRIPTION", _escaped(app.help or ""))
    yield ".SH OPTIONS"
    with app.make_context("mcpctl", [], resilient_parsing=True) as root:
        yield from _options(app, root)
        for section in SECTIONS:
            yield f".SH {section.upper()}"
            for name, entry in COMMANDS.items():
                command = app.get_command(root, name)
                if entry.section == section and not entry.hidden and command is not None:
                    yield from _command(command, name, root)
    yield ".SH EXIT STATUS"
    yield from _pairs((str(code), meaning) for code, meaning in EXIT_CODES)
    yield from (".SH ENVIRONMENT", *_pairs(CTL_ENVIRONMENT))
    yield from (".SH FILES", *_pairs(FILES))
    yield from (".SH SEE ALSO", ".BR mcpd (1)")


def _mcpd() -> Iterator[str]:
    parser = argument_parser()
    yield from _head("mcpd", "daemon that runs and shares your MCP servers")
    yield from (".SH SYNOPSIS", ".B mcpd", "[OPTION]...")
    yield from (".SH DESCRIPTION", _escaped(parser.description or ""))
    yield _escaped(
        "mcpd runs in the foreground. mcpctl starts it in the background when needed, and `mcpctl daemon"
        " install` sets it up as a systemd user service."
    )
    yield ".SH OPTIONS"
    for action in parser._actions:  # argparse has no public access to its options
        value = f" {action.metavar or '|'.join(map(str, action.choices or ()))}" if action.nargs != 0 else ""
        words = ", ".join(action.option_strings) + value
        yield from _pair(words, "" if action.help is argparse.SUPPRESS else action.help or "")
    yield from (
        ".SH SIGNALS",
        *_pairs(
            (
                ("TERM, INT", "Stop in an orderly way. A second signal stops immediately."),
                ("HUP", "Read the configuration again."),
            )
        ),
    )
    yield ".SH EXIT STATUS"
    yield from _pairs((str(code), meaning) for code, meaning in D_EXITS)
    yield from (".SH ENVIRONMENT", *_pairs(D_ENVIRONMENT))
    yield from (".SH FILES", *_pairs(FILES))
    yield from (".SH SEE ALSO", ".BR mcpctl (1)")


def _head(name: str, about: str) -> Iterator[str]:
    yield f'.TH {name.upper()} 1 "" "mcpd {__version__}" "MCP connection daemon"'
    yield from (".SH NAME", f"{name} \\- {_escaped(about)}")


def _command(command: click.Command, path: str, parent: click.Context) -> Iterator[str]:
    with click.Context(command, parent, info_name=path.split()[-1]) as context:
        usage = " ".join(command.collect_usage_pieces(context))
        yield from (
            f".SS mcpctl {_escaped(path)} {_escaped(usage)}".rstrip(),
            *_paragraphs(command.help or ""),
        )
        yield from _options(command, context)
        examples = re.sub(r"^Examples:", "", command.epilog or "").strip()
        if examples:
            yield from (".PP", "Examples:", *_paragraphs(examples))
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                child = command.get_command(context, name)
                if child is not None:
                    yield from _command(child, f"{path} {name}", context)


def _options(command: click.Command, context: click.Context) -> Iterator[str]:
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if (
            record is not None
            and record[1]
            and (command is app or "--json" not in parameter.opts)
            and "--help" not in parameter.opts
        ):
            yield from _pair(*record)


def _paragraphs(text: str) -> Iterator[str]:
    for index, paragraph in enumerate(text.split("\n\n")):
        lines = paragraph.splitlines()
        if lines and lines[0].strip() == "\b":
            yield from (".nf", *(_escaped(line) for line in lines[1:]), ".fi")
        else:
            if index:
                yield ".PP"
            yield _escaped(" ".join(line.strip() for line in lines))


def _pairs(pairs: Iterator[tuple[str, str]] | tuple[tuple[str, str], ...]) -> Iterator[str]:
    for term, meaning in pairs:
        yield from _pair(term, meaning)


def _pair(term: str, meaning: str) -> Iterator[str]:
    yield from (".TP", f"\\fB{_escaped(term)}\\fR", _escaped(" ".join(meaning.split())))


def _escaped(text: str) -> str:
    """Escape text so that no line is a roff request and hyphens can be copied and pasted."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("…", "...").replace("→", "\\(->")
    return re.sub(r"^([.'])", r"\\&\1", text, flags=re.MULTILINE)


if __name__ == "__main__":
    MAN.mkdir(exist_ok=True)
    for name, text in pages().items():
        (MAN / name).write_text(text)
