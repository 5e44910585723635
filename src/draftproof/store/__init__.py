"""Run directories on disk: an append-only journal, its compact copy, and what is computed from them.

The names are found when they are first used: a load worker writes lines and must not wait for tables and
statistics to be imported.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from draftproof.store.run_directory import LOG_FOLDER, RunDirectory
    from draftproof.store.tables import save_compacted

__all__ = ["LOG_FOLDER", "RunDirectory", "save_compacted"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "tables" if name == "save_compacted" else "run_directory"
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)
