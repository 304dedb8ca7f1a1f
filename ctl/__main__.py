"""`python -m ctl` is `mcpctl`."""

from ctl.main import main

main()
