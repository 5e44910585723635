"""Telemetry: the services' own metrics, parsed (pure) and fetched, apart from each other."""
