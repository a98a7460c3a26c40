"""Measuring: numbers are checked first, then time is taken, in a process of its own; every raw sample is kept."""
