"""The qualification: joins plan, arms, load, store, verdict and report along the path of the data.

Owns the order of events and nothing else; every step is a call of the package that owns it.
"""
