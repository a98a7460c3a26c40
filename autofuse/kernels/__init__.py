"""Kernel families, one file each: which variants implement a region, which schedules are legal, how they lower to loops."""
