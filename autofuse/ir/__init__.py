"""The data that every other part speaks of: types, scalar expressions, stages, graphs, targets."""
