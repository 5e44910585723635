"""Keeps secrets out of the journal: what a service quotes of its request is masked before that."""

from draftproof.load.turn import Sink
from draftproof.plan.environment import mask_struct
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
