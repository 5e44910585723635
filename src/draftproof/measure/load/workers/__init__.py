"""Load workers: processes that share a period, each with a loop, connections and journal of its own."""
