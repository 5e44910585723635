"""Ids of items that a run could not tell from names that it makes itself.

Pure. A request is named by its item and a mark: `+1` is a later turn of a conversation, `#fill3` a request
that does not count, `~2` an item's copy in a search for the knee.
"""

import re
from collections.abc import Collection

from draftproof.errors import WorkloadError

_MARK = re.compile(r"(?:\+\d+|#[a-z_]+\d+(?:\.\d+)?|~\d+)\Z", re.ASCII)


def check_ids(ids: Collection[str], place: str) -> None:
    """Refuse an id that is another one with a mark of a run behind it.

    Raises:
        WorkloadError: names both.
    """
    for name in ids:
        other = name
        while found := _MARK.search(other):
            other = other[: found.start()]
            if other in ids:
                raise WorkloadError(
                    f"the id {name!r} is what a run calls a request of the item {other!r}",
                    place=place,
                    fix="give one of them another id.",
                )
