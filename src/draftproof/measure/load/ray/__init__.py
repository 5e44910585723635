"""Load workers on a Ray cluster: actors on other hosts that run their parts of a period.

Only `cluster` knows Ray, and imports it when a plan asks for it.
"""
