"""For tests, ours and others': a server of known timing, a scripted transport, builders of records."""
