"""Run directories on disk: an append-only journal, its compact copy, and what is computed from them."""

from draftproof.store.compaction import save_compacted
from draftproof.store.run_directory import LOG_FOLDER, RunContents, RunDirectory

__all__ = ["LOG_FOLDER", "RunContents", "RunDirectory", "save_compacted"]
