"""What the run holds: its data, pairs, columns, windows. Decides nothing."""
