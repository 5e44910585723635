"""Load workers: processes that share a turn, each with a loop, connections and journal of its own."""
