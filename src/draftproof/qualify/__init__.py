"""The qualification: joins plan, arms, load, store, verdict and report along the path of the data.

Owns the order of events and nothing else; every step is a call of the package that owns it.
"""

from draftproof.qualify.check import CheckReport, check_plan
from draftproof.qualify.progress import Interrupted, Patience, Progress, Quiet
from draftproof.qualify.reporting import explain_run, recompute
from draftproof.qualify.runner import resume_run, run_plan

__all__ = [
    "CheckReport",
    "Interrupted",
    "Patience",
    "Progress",
    "Quiet",
    "check_plan",
    "explain_run",
    "recompute",
    "resume_run",
    "run_plan",
]
