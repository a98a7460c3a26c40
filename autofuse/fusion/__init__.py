"""Which nodes may be computed together, and the partitions that this allows."""
