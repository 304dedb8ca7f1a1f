"""`mcpctl bridge`: the stdio MCP server that an editor starts, connected to the daemon's Unix socket.

    loop ► daemon_link ► editor_session ► pending_requests, resume, error_replies
      └──► write_buffer, daemon_starter

`editor_session` knows which requests are open and what a restarted daemon must be told. It has no input or
output and no clock of its own. `daemon_link` manages the connection to the daemon, and only `loop` waits.
Nothing here imports click, attrs or trio: dozens of bridges run on a machine, one for each editor window.
"""
