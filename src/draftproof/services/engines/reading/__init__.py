"""What an engine says outside its answers: command lines, JSON bodies, Prometheus series."""
