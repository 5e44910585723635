"""Load workers: processes that share a turn, each with a loop, connections and journal of its own."""

from draftproof.measure.load.workers.handle import WorkerDiedError
from draftproof.measure.load.workers.pool import Outcome, WorkerPool, index_by_turn

__all__ = ["Outcome", "WorkerDiedError", "WorkerPool", "index_by_turn"]
