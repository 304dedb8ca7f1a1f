"""The table of commands: where each lives, and its line in `mcpctl --help`.

The lines are repeated here so that the help needs none of the modules; a test keeps them equal to
the first line of each command's own help.
"""

from __future__ import annotations

from typing import NamedTuple

SECTIONS = ("Servers", "What servers offer", "The set of servers", "Looking closer", "mcpctl and mcpd")


class Entry(NamedTuple):
    """One command: `attribute` of `ctl.commands.<module>`."""

    section: str
    module: str
    attribute: str
    help: str
    hidden: bool = False


_SERVERS, _OFFERS, _SET, _LOOK, _SELF = SECTIONS

COMMANDS: dict[str, Entry] = {
    "status": Entry(_SERVERS, "status", "status", "How every server is, or one with its evidence."),
    "connect": Entry(_SERVERS, "lifecycle", "connect", "Connect servers now."),
    "disconnect": Entry(_SERVERS, "lifecycle", "disconnect", "Disconnect servers until connected again."),
    "reconnect": Entry(_SERVERS, "lifecycle", "reconnect", "End servers and connect them afresh."),
    "enable": Entry(_SERVERS, "lifecycle", "enable", "Switch servers on; lasts."),
    "disable": Entry(_SERVERS, "lifecycle", "disable", "Switch servers off; lasts."),
    "wait": Entry(_SERVERS, "wait", "wait", "Wait until servers are connected."),
    "list-tools": Entry(_OFFERS, "tools", "list_tools", "The tools of every server, or of one."),
    "tools": Entry(_OFFERS, "tools", "list_tools", "The same as list-tools.", hidden=True),
    "call": Entry(_OFFERS, "call", "call", "Call a tool."),
    "resources": Entry(
        _OFFERS, "resources", "resources", "The resources and templates of every server, or of one."
    ),
    "read": Entry(_OFFERS, "resources", "read", "Read a resource."),
    "prompts": Entry(_OFFERS, "prompts", "prompts", "The prompts of every server, or of one."),
    "prompt": Entry(_OFFERS, "prompts", "prompt", "Get a prompt, filled in."),
    "add": Entry(_SET, "servers", "add", "Add a server, and write it into the configuration file."),
    "remove": Entry(_SET, "servers", "remove", "Remove a server, from the configuration file too."),
    "apply": Entry(_SET, "servers", "apply", "Make the set of servers what a file says."),
    "reload": Entry(_SET, "servers", "reload", "Read the configuration file again."),
    "import": Entry(_SET, "import_", "import_", "Import the servers that your editors have."),
    "install": Entry(_SET, "install", "install", "Have editors use mcpd."),
    "uninstall": Entry(_SET, "install", "uninstall", "Undo what install did."),
    "edit": Entry(_SET, "edit", "edit", "Edit the configuration file, checked before it counts."),
    "secret": Entry(_SET, "secret", "secret", "Keep the secrets that definitions name as ${secret:NAME}."),
    "config": Entry(_SET, "config", "config", "Validate, show or find the configuration."),
    "ui": Entry(_LOOK, "ui", "ui", "Open the dashboard in your browser."),
    "doctor": Entry(_LOOK, "doctor", "doctor", "Look whether everything is as it has to be."),
    "why": Entry(_LOOK, "why", "why", "Why a server is as it is, and what to do."),
    "logs": Entry(_LOOK, "logs", "logs", "What a server wrote to its stderr."),
    "history": Entry(_LOOK, "history", "history", "What happened to a server, or to all, and why."),
    "clients": Entry(_LOOK, "clients", "clients", "Who is connected, from which process, using what."),
    "stats": Entry(_LOOK, "stats", "stats", "What servers are used for: calls, errors, times, clients."),
    "top": Entry(_LOOK, "top", "top", "What servers cost now: memory, processor, calls."),
    "tap": Entry(_LOOK, "tap", "tap", "Watch a server's messages pass, secrets masked."),
    "metrics": Entry(_LOOK, "metrics", "metrics", "Everything that is counted, in Prometheus' text format."),
    "events": Entry(_LOOK, "logs", "events", "What happens to servers, as it happens."),
    "debug": Entry(_LOOK, "debug", "debug", "Everything known about one server."),
    "bridge": Entry(_SELF, "bridge", "bridge", "What an editor starts: all servers, over stdin and stdout."),
    "daemon": Entry(_SELF, "daemon", "daemon", "Install, start, stop and inspect the daemon."),
    "version": Entry(_SELF, "about", "version", "The versions of mcpctl and of the running daemon."),
    "completion": Entry(_SELF, "completion", "completion", "Print the completion script for a shell."),
    "help": Entry(_SELF, "about", "help_", "Help on a command, or on exit-codes."),
    "exit-codes": Entry(_SELF, "about", "exit_codes", "What the exit codes mean.", hidden=True),
    "shutdown": Entry(_SELF, "about", "shutdown", "Stop the daemon and every server.", hidden=True),
}
