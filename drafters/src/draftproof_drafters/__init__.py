"""Drafters for the demo's model: a folder each, weights and the record of how they were made."""
