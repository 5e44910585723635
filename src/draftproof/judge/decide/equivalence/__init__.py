"""Are the outputs of two arms the same, and if not, why."""
