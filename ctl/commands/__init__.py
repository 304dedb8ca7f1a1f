"""The table of commands: where each lives, and its line in `mcpctl --help`.

The lines are repeated here so that the help needs none of the modules; a test keeps them equal to
the first line of each command's own help.
"""

from __future__ import annotations

from typing import NamedTuple

SECTIONS = ("Servers", "What servers offer", "The set of servers", "Looking closer", "mcpctl and mcpd")


class CommandEntry(NamedTuple):
    """One command: `attribute` of `ctl.commands.<module>`."""

    section: str
    module: str
    attribute: str
    help: str
    hidden: bool = False


_SERVERS, _OFFERS, _SET, _LOOK, _SELF = SECTIONS

COMMANDS: dict[str, CommandEntry] = {
    "status": CommandEntry(_SERVERS, "status", "status", "How every server is, or one with its evidence."),
    "connect": CommandEntry(_SERVERS, "lifecycle", "connect", "Connect servers now."),
    "disconnect": CommandEntry(
        _SERVERS, "lifecycle", "disconnect", "Disconnect servers until connected again."
    ),
    "reconnect": CommandEntry(_SERVERS, "lifecycle", "reconnect", "End servers and connect them afresh."),
    "enable": CommandEntry(_SERVERS, "lifecycle", "enable", "Switch servers on; lasts."),
    "disable": CommandEntry(_SERVERS, "lifecycle", "disable", "Switch servers off; lasts."),
    "wait": CommandEntry(_SERVERS, "wait", "wait", "Wait until servers are connected."),
    "list-tools": CommandEntry(_OFFERS, "tools", "list_tools", "The tools of every server, or of one."),
    "tools": CommandEntry(_OFFERS, "tools", "list_tools", "The same as list-tools.", hidden=True),
    "call": CommandEntry(_OFFERS, "call", "call", "Call a tool."),
    "resources": CommandEntry(
        _OFFERS, "resources", "resources", "The resources and templates of every server, or of one."
    ),
    "read": CommandEntry(_OFFERS, "resources", "read", "Read a resource."),
    "prompts": CommandEntry(_OFFERS, "prompts", "prompts", "The prompts of every server, or of one."),
    "prompt": CommandEntry(_OFFERS, "prompts", "prompt", "Get a prompt, filled in."),
    "add": CommandEntry(_SET, "servers", "add", "Add a server, and write it into the configuration file."),
    "remove": CommandEntry(_SET, "servers", "remove", "Remove a server, from the configuration file too."),
    "apply": CommandEntry(_SET, "servers", "apply", "Make the set of servers what a file says."),
    "reload": CommandEntry(_SET, "servers", "reload", "Read the configuration file again."),
    "import": CommandEntry(_SET, "import_", "import_", "Import the servers that your editors have."),
    "install": CommandEntry(_SET, "install", "install", "Have editors use mcpd."),
    "uninstall": CommandEntry(_SET, "install", "uninstall", "Undo what install did."),
    "edit": CommandEntry(_SET, "edit", "edit", "Edit the configuration file, checked before it counts."),
    "secret": CommandEntry(
        _SET, "secret", "secret", "Keep the secrets that definitions name as ${secret:NAME}."
    ),
    "config": CommandEntry(_SET, "config", "config", "Validate, show or find the configuration."),
    "ui": CommandEntry(_LOOK, "ui", "ui", "Open the dashboard in your browser."),
    "doctor": CommandEntry(_LOOK, "doctor", "doctor", "Look whether everything is as it has to be."),
    "why": CommandEntry(_LOOK, "why", "why", "Why a server is as it is, and what to do."),
    "logs": CommandEntry(_LOOK, "logs", "logs", "What a server wrote to its stderr."),
    "history": CommandEntry(_LOOK, "history", "history", "What happened to a server, or to all, and why."),
    "clients": CommandEntry(_LOOK, "clients", "clients", "Who is connected, from which process, using what."),
    "stats": CommandEntry(
        _LOOK, "stats", "stats", "What servers are used for: calls, errors, times, clients."
    ),
    "top": CommandEntry(_LOOK, "top", "top", "What servers cost now: memory, processor, calls."),
    "tap": CommandEntry(_LOOK, "tap", "tap", "Watch a server's messages pass, secrets masked."),
    "metrics": CommandEntry(
        _LOOK, "metrics", "metrics", "Everything that is counted, in Prometheus' text format."
    ),
    "events": CommandEntry(_LOOK, "logs", "events", "What happens to servers, as it happens."),
    "debug": CommandEntry(_LOOK, "debug", "debug", "Everything known about one server."),
    "bridge": CommandEntry(
        _SELF, "bridge", "bridge", "What an editor starts: all servers, over stdin and stdout."
    ),
    "daemon": CommandEntry(_SELF, "daemon", "daemon", "Install, start, stop and inspect the daemon."),
    "version": CommandEntry(_SELF, "about", "version", "The versions of mcpctl and of the running daemon."),
    "completion": CommandEntry(_SELF, "completion", "completion", "Print the completion script for a shell."),
    "help": CommandEntry(_SELF, "about", "help_", "Help on a command, or on exit-codes."),
    "exit-codes": CommandEntry(_SELF, "about", "exit_codes", "What the exit codes mean.", hidden=True),
    "shutdown": CommandEntry(_SELF, "about", "shutdown", "Stop the daemon and every server.", hidden=True),
}
