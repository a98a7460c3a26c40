"""What Python programs call. The names that are meant for them are those of the package `autofuse` itself."""
