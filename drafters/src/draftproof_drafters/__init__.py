"""Drafters for the demo's model: a folder each, with weights and the record of what they were made for and how."""
