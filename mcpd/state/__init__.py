"""What outlives a connection or the daemon: the active configuration, stored state, history, and clients."""
