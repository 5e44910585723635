"""From metrics to a decision: effects, cells, envelope, diagnosis, verdict. Pure."""
