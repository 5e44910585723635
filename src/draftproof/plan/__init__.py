"""The plan: what is compared, on which traffic, and which thresholds decide. Frozen before the run."""
