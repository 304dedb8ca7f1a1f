"""The rules of OAuth as pure functions: no I/O, no clock, no event loop."""
