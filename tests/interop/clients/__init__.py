"""MCP clients that others have written, each run as its users run it: a program, told where a server is.

`drivers` says how each is started and what it saw. Those that are libraries have a program here that does a
`job`: `python1`, `python2`, `fastmcp4`, `typescript1.mjs`, `typescript2.mjs`. The others are used by their
command lines.
"""
