"""How other estimators read the same run, and what they would have decided."""
