"""Structs of what was computed; no formula."""
