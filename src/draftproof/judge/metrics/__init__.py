"""Per-request and pooled metrics, one formula per term, as `docs/metrics.md` states it."""
