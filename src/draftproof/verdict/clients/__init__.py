"""What the load client did in each arm and at each load. Pure."""
