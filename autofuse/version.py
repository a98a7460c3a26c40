"""The version, alone in a file so that every part may read it."""

__version__ = "0.1.0"
