"""A sink that keeps records in memory, for loads that are judged at once and not stored."""

from draftproof.records import RequestRecord


class MemorySink:
    """Takes every record; `records` are those taken so far, in the order in which their requests ended."""

    def __init__(self) -> None:
        self.records: list[RequestRecord] = []

    def append(self, record: RequestRecord) -> None:
        """Keep one record."""
        self.records.append(record)
