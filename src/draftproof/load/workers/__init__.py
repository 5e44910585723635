"""Load workers: processes that share a turn, each with a loop, connections and journal of its own."""

from draftproof.load.workers.handle import WorkerDiedError
from draftproof.load.workers.pool import Outcome, WorkerPool, index_by_turn

__all__ = ["Outcome", "WorkerDiedError", "WorkerPool", "index_by_turn"]
