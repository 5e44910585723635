"""Probes of an arm's behaviour: what applications rely on beside speed, asked outside measured turns."""
