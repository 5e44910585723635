"""A stretch of work in which Python does not search for garbage in cycles."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collection() -> Iterator[None]:
    """Keep the collector of cycles still: the records of a long run have none, and it walks them for nothing.

    What nothing refers to any more is freed as ever. Nested stretches end with the outermost.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
