"""Builders of records, runs, results and hosts for tests and benchmarks. Nothing is measured here."""
