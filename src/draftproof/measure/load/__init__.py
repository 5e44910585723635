"""Keeps a service under a stated load and hands every attempted request to a sink."""
