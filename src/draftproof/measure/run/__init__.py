"""The qualification: joins plan, arms, load, store, verdict and report along the path of the data.

Owns the order of events and nothing else; every step is a call of the package that owns it.
"""

from draftproof.measure.run.check import CheckReport, check_plan
from draftproof.measure.run.progress import Interrupted, Patience, Progress, Quiet
from draftproof.measure.run.reporting import explain_run, recompute
from draftproof.measure.run.runner import resume_run, run_plan

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
