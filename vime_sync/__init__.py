"""vime-sync: a published stream of weights becomes a proven local checkpoint that engines can load."""

__version__ = "0.1.0"
