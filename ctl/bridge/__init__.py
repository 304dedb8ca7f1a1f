"""`mcpctl bridge`: the stdio MCP server that an editor starts, and the daemon's Unix socket behind it.

    loop ► link ► conversation ► legacy, modern, batch ► envelope
      └──► pipes, starter

`conversation` is the books: what is under way, and what a daemon that comes back has to be told. It has
no input or output and no clock of its own. `link` is the way to the daemon, `loop` the only thing that
waits. Nothing here imports click, attrs or trio: dozens of bridges run on a machine, one for each window.
"""
