"""`python -m mcpd`."""

from mcpd.main import main

if __name__ == "__main__":
    main()
