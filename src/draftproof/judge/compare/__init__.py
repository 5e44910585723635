"""Two runs side by side: what changed in configuration, in delivery, and in what was concluded."""

from draftproof.judge.compare.compare import compare_runs
from draftproof.judge.compare.comparison import EXIT_CODES, RunComparison, Triggers, find_triggers

__all__ = ["EXIT_CODES", "RunComparison", "Triggers", "compare_runs", "find_triggers"]
