"""Keeps secrets out of the journal: what a service quotes of its own request is masked before it is kept."""

import msgspec

from draftproof.arms.environment import mask_values
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
        self._sink.append(mask_record(record, self._secrets) if self._secrets else record)


def mask_record(record: RequestRecord, secrets: tuple[str, ...]) -> RequestRecord:
    """Return a record with the secrets masked; one that holds none comes back as it is.

    A secret may hold signs that JSON writes otherwise, so it is sought in the form in which it is written.
    """
    line = msgspec.json.encode(record).decode()
    written = [msgspec.json.encode(secret).decode()[1:-1] for secret in secrets]
    masked = mask_values(line, written)
    return record if masked == line else msgspec.json.decode(masked, type=RequestRecord)
