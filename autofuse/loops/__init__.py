"""The loop IR: what a kernel does, before it is text of any dialect."""
