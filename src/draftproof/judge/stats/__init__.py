"""Statistics on plain arrays: intervals, shares, multiplicity, order effects. Knows no type of the project.

`docs/statistics.md` says which interval is used where, why, and how its coverage was measured.
"""
