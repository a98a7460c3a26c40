"""Loops become text: one file a dialect, with a prelude each as its only hand-written device code."""
