"""The whole path on one machine: a trainer that publishes, the real daemon, and an engine that loads what it wrote.

Everything lies in one directory and is gone afterwards. After each step the engine's answer, and every byte that the
daemon wrote, are held against what the trainer has in memory. Prints nothing: what happens is told to a listener.
"""
