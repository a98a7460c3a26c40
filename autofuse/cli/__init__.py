"""The command line. One file per group of commands; main.py puts them together."""
