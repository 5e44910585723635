"""Device time, energy, capacity and money of each arm."""
