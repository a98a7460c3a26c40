"""Faults that are injected into tunes, as a table, and what must hold whatever happens."""
