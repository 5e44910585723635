"""Effects of place and hour inside a run, and how far equal arms differ."""
