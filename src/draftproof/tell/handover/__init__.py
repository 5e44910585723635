"""One archive for another team: packed from a run, verified without trust in whoever packed it."""
