"""What the commands show about servers: the table, progress, and a live display."""
