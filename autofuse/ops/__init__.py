"""Operators: one declaration each says what it computes; shapes, numerics, kernels, FLOPs and bytes follow from it."""
