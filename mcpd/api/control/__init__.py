"""The control API: its methods, and how the requests of one connection are handled."""
