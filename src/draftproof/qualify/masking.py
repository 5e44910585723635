"""Keeps secrets out of journal and messages: what a service quotes of its request is masked before that."""

import contextlib
from collections.abc import Iterator

from draftproof.arms.environment import mask_struct, mask_values
from draftproof.errors import DraftproofError
from draftproof.load.turn import Sink
from draftproof.records import RequestRecord


class MaskingSink:
    """Hands records on with every secret masked in every text of theirs.

    A service that refuses a key likes to repeat it in its answer, and an answer is kept as it came.

    Args:
        sink: takes the records.
        secrets: values to mask.
    """

    def __init__(self, sink: Sink, secrets: tuple[str, ...]) -> None:
        self._sink, self._secrets = sink, secrets

    def append(self, record: RequestRecord) -> None:
        """Keep one record."""
        self._sink.append(mask_struct(record, self._secrets) if self._secrets else record)


@contextlib.contextmanager
def masked_errors(secrets: tuple[str, ...]) -> Iterator[None]:
    """Mask secrets in the errors that the body raises: a service may repeat a key in all that it says."""
    try:
        yield
    except DraftproofError as error:
        error.message = mask_values(error.message, secrets)
        error.place = error.place and mask_values(error.place, secrets)
        error.fix = error.fix and mask_values(error.fix, secrets)
        error.args = (error.message,)
        raise
