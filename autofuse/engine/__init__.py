"""Engines: a plan becomes memory, prepared weights and a sequence of launches that runs."""
