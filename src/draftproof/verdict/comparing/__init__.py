"""Two runs side by side: what changed in configuration, in delivery, and in what was concluded."""

from draftproof.verdict.comparing.compare import compare_runs
from draftproof.verdict.comparing.comparison import EXIT_CODES, RunComparison, Triggers, find_triggers

__all__ = ["EXIT_CODES", "RunComparison", "Triggers", "compare_runs", "find_triggers"]
