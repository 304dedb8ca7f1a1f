"""The table of commands: the module of each, and its line in `mcpctl --help`.

The summaries are repeated here so that the overview needs no command module. A test keeps them equal to
the first line of each command's own help.
"""

from __future__ import annotations

from typing import NamedTuple


class CommandEntry(NamedTuple):
    """One command: `attribute` of `ctl.commands.<module>`."""

    section: str
    module: str
    attribute: str
    help: str
    hidden: bool


_TABLE: dict[str, tuple[tuple[str, str, str], ...]] = {
    "Servers": (
        ("status", "explain", "Show the status of all servers, or details for one."),
        ("connect", "lifecycle", "Connect servers."),
        ("disconnect", "lifecycle", "Disconnect servers until they are connected again."),
        ("reconnect", "lifecycle", "Restart the connection to servers."),
        ("enable", "lifecycle", "Enable servers (persists across restarts)."),
        ("disable", "lifecycle", "Disable servers (persists across restarts)."),
        ("wait", "lifecycle", "Wait until servers are connected."),
        ("login", "login", "Log in to a remote server in your browser, or show logins."),
        ("logout", "login", "Log out of a remote server, and revoke its tokens."),
        ("auth", "login", "Show, explain, and renew logins to remote servers."),
    ),
    "Tools, resources and prompts": (
        ("list-tools", "tools_resources_prompts", "List the tools of all servers, or of one."),
        ("search", "tools_resources_prompts", "Alias of list-tools --grep."),
        ("call", "call", "Call a tool."),
        ("run", "run", "Run a Python script that calls tools, in a sandbox."),
        ("try", "call", "Run a server without adding it."),
        ("resources", "tools_resources_prompts", "List the resources of all servers, or of one."),
        ("read", "tools_resources_prompts", "Read a resource, or list all resources."),
        ("prompts", "tools_resources_prompts", "List the prompts of all servers, or of one."),
        ("prompt", "tools_resources_prompts", "Get a prompt with its arguments filled in, or list all."),
        ("emit-types", "emit_types", "Write typed functions for tools to stdout."),
    ),
    "Configuration and editors": (
        ("add", "add_remove_apply", "Add a server and save it in the configuration file."),
        ("remove", "add_remove_apply", "Remove servers and delete them from the configuration file."),
        ("apply", "add_remove_apply", "Replace the running set of servers with those in a file."),
        ("reload", "add_remove_apply", "Reload the configuration file."),
        ("import", "import_", "Import servers from your editors."),
        ("install", "install", "Configure editors to use mcpd."),
        ("uninstall", "install", "Undo the changes made by install."),
        ("edit", "config_edit", "Edit the configuration file and validate it before applying it."),
        ("secret", "secret", "Manage the secrets referenced as ${secret:NAME}."),
        ("policy", "policy", "Explain which client may use which tools."),
        ("approvals", "policy", "List the calls that wait for your approval, or answer them."),
        ("config", "config_edit", "Validate, show, locate, reload or replace the configuration."),
    ),
    "Diagnostics": (
        ("ui", "help_version", "Open the dashboard in your browser."),
        ("doctor", "explain", "Check the installation, the configuration and every server."),
        ("why", "explain", "Explain the state of a server, or who may use a tool."),
        ("logs", "logs_events_tap", "Show what a server wrote to stderr, or its messages."),
        ("history", "history", "Show past events for one server or all servers."),
        ("calls", "history", "Show which client called which tool, and how it ended."),
        ("clients", "stats", "List connected clients and the servers they use."),
        ("stats", "stats", "Show calls, errors and latencies per server."),
        ("cache", "stats", "Manage the results that mcpd uses again."),
        ("top", "stats", "Show the memory, CPU, calls and latencies of each server."),
        ("tap", "logs_events_tap", "Show a server's messages live, with secrets masked."),
        ("metrics", "stats", "Print all metrics in Prometheus text format."),
        ("events", "logs_events_tap", "Follow server events as they happen."),
        ("debug", "explain", "Show everything known about one server, or all metrics."),
    ),
    "mcpctl and mcpd": (
        ("bridge", "help_version", "Serve all servers over stdin and stdout, for editors."),
        ("daemon", "daemon", "Install, start, stop and inspect the daemon."),
        ("version", "help_version", "Show the versions of mcpctl and the running daemon."),
        ("completion", "help_version", "Print the completion script for a shell."),
        ("help", "help_version", "Show help for a command, or the exit codes."),
        ("exit-codes", "help_version", "List the exit codes."),
        ("shutdown", "help_version", "Stop the daemon and all servers."),
        ("_relay", "relay", "Connect stdin and stdout to mcpd, for `mcpctl --host` on another machine."),
    ),
}
_ATTRIBUTES = {"import": "import_", "help": "help_", "try": "try_", "_relay": "relay"}
"""Functions that are not named like their command."""

ALIASES = {
    "restart": "reconnect",
    "ls": "status",
    "ps": "status",
    "list": "status",
    "tools": "list-tools",
    "dashboard": "ui",
}
"""Names that other programs use for a command. They work, but are not listed."""

SYNONYMS = {
    "start": "mcpctl enable SERVER starts a server, mcpctl daemon start the daemon",
    "stop": "mcpctl disable SERVER stops a server, mcpctl daemon stop the daemon",
    "inspect": "mcpctl debug SERVER shows everything about a server",
    "show": "mcpctl status SERVER shows a server, mcpctl config show the configuration",
    "test": "mcpctl doctor checks everything, mcpctl why SERVER explains the state of a server",
    "check": "mcpctl doctor checks everything, mcpctl config validate a configuration file",
    "init": "mcpctl import takes over the servers of your editors, mcpctl add adds one",
    "rm": "mcpctl remove SERVER",
    "profile": "mcpctl install EDITOR --profile NAME uses one, mcpctl edit changes `settings.profiles`",
    "profiles": "mcpctl install EDITOR --profile NAME uses one, mcpctl edit changes `settings.profiles`",
    "mcp": "mcpctl --help lists the commands; mcpctl add NAME URL adds a remote server",
    "auth login": "mcpctl login SERVER",
    "auth logout": "mcpctl logout SERVER",
    "auth renew": "mcpctl login SERVER --renew",
    "auth": "mcpctl login SERVER logs in, mcpctl login --list shows all logins",
    "secret rm": "mcpctl secret remove NAME",
    "secret delete": "mcpctl secret remove NAME",
    "secret ls": "mcpctl secret list",
    "secret add": "mcpctl secret set NAME",
    "secret get": "mcpctl secret list   (values are not shown)",
    "config edit": "mcpctl edit",
    "config get": "mcpctl config show",
    "config set": "mcpctl edit",
    "config check": "mcpctl config validate",
}
"""What to type instead of a command that other programs have, also of a group such as `auth`."""

EVERYDAY = ("status", "add", "call", "list-tools", "reconnect", "why", "logs", "import", "install", "ui")
"""The commands that `mcpctl --help` lists first."""

SECTIONS = tuple(_TABLE)
FOLDED = {
    "apply": "config apply",
    "auth": "login",
    "cache": "",
    "connect": "enable",
    "disconnect": "disable",
    "events": "history --follow",
    "metrics": "debug --metrics",
    "policy": "why --client",
    "prompts": "prompt",
    "reload": "config reload",
    "resources": "read",
    "stats": "top",
    "tap": "logs --messages",
}
"""Commands that others can do too. They work as before, but `mcpctl --help` does not list them."""

LOCAL = (
    "config path",
    "config validate",
    "daemon",
    "doctor",
    "edit",
    "import",
    "install",
    "secret",
    "uninstall",
)
"""Commands that use files or processes of the machine they run on, so that they have no `--host`."""

_HIDDEN = ("_relay", *FOLDED, "search", "exit-codes", "shutdown", "completion", "help", "version")
COMMANDS: dict[str, CommandEntry] = {
    name: CommandEntry(
        section, module, _ATTRIBUTES.get(name, name.replace("-", "_")), summary, name in _HIDDEN
    )
    for section, commands in _TABLE.items()
    for name, module, summary in commands
}
COMMANDS |= {
    alias: COMMANDS[name]._replace(help=f"Alias of {name}.", hidden=True) for alias, name in ALIASES.items()
}
