"""The check of the load client against a server of known timing, and against faults of known number."""
