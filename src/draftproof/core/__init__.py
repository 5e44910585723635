"""What every room may use: errors, the clock, records, manifests."""
