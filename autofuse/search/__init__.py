"""The search: kernel studies and the plan study, under a budget."""
