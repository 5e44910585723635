"""What the application does beyond speed: probes, checks, conversations."""
