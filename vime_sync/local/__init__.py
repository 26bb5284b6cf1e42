"""LOCAL, the host's own checkpoint directory: whose it is, who holds it, and what is recorded about it."""
