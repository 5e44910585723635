"""The journal: one request or turn a line, appended as it happens, read back in one fixed order.

Each line is `{"kind": KIND, "v": <schema version>, "record": {...}}`, KIND being request, block, judgement or
behaviour; judgements of answers and probes of behaviour lie in files of their own beside the requests. A file
of an older schema version keeps loading: fields that came later have defaults.
"""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from draftproof.errors import StoreError
from draftproof.records import SCHEMA_VERSION, BehaviourProbe, BlockRecord, Judgement, RequestRecord
from draftproof.store.lines import LineFile, count_torn_lines, read_whole_lines

Record = RequestRecord | BlockRecord | Judgement | BehaviourProbe
_ENCODER = msgspec.json.Encoder()


class _RequestLine(msgspec.Struct, frozen=True, tag_field="kind", tag="request"):
    v: int
    record: RequestRecord


class _BlockLine(msgspec.Struct, frozen=True, tag_field="kind", tag="block"):
    v: int
    record: BlockRecord


class _JudgementLine(msgspec.Struct, frozen=True, tag_field="kind", tag="judgement"):
    v: int
    record: Judgement


class _BehaviourLine(msgspec.Struct, frozen=True, tag_field="kind", tag="behaviour"):
    v: int
    record: BehaviourProbe


class _Version(msgspec.Struct, frozen=True):
    v: int


class JournalContents(msgspec.Struct, frozen=True, kw_only=True):
    """All records of a run in their fixed order, and how many torn lines were left out.

    Requests are ordered by block, arm, place in the block and request id; two attempts at the same place
    keep the order in which they were written. Turns are ordered by block, order and arm, judgements by
    request, check and attempt, probes by arm and time.
    """

    records: tuple[RequestRecord, ...]
    blocks: tuple[BlockRecord, ...]
    torn_lines: int
    judgements: tuple[Judgement, ...] = ()
    behaviours: tuple[BehaviourProbe, ...] = ()


class Journal:
    """Appends records to one journal file.

    Every record is with the kernel when `append` returns; at the end of each turn (BlockRecord) and on
    `close` it is on the device. A power cut loses at most the turn in progress.
    """

    def __init__(self, lines: LineFile) -> None:
        self._lines = lines

    def append(self, record: Record) -> None:
        """Add one record.

        Raises:
            StoreError: the disk is full or the file cannot be written; the journal stays whole.
        """
        self._lines.append(encode_line(record))
        if isinstance(record, BlockRecord):
            self._lines.sync()

    def close(self) -> None:
        """Put everything on the device and close the file."""
        self._lines.close()


def encode_line(record: Record) -> bytes:
    """Return the line of a record, without its newline."""
    match record:
        case RequestRecord():
            return _ENCODER.encode(_RequestLine(SCHEMA_VERSION, record))
        case BlockRecord():
            return _ENCODER.encode(_BlockLine(SCHEMA_VERSION, record))
        case Judgement():
            return _ENCODER.encode(_JudgementLine(SCHEMA_VERSION, record))
        case BehaviourProbe():
            return _ENCODER.encode(_BehaviourLine(SCHEMA_VERSION, record))


def load_journal(folder: Path) -> JournalContents:
    """Read every `*.jsonl` of a folder, in the order of their names.

    Raises:
        StoreError: a line that is not a record, named by file and line; or a newer schema version.
    """
    paths = sorted(folder.glob("*.jsonl"))
    records = [record for path in paths for record in iterate_records(path)]
    return order_records(records, torn_lines=sum(map(count_torn_lines, paths)))


def iterate_records(path: Path) -> Iterator[Record]:
    """Yield the records of one file as written; a torn last line is left out.

    Raises:
        StoreError: as `load_journal`.
    """
    decoder = msgspec.json.Decoder(_RequestLine | _BlockLine | _JudgementLine | _BehaviourLine)
    for number, line in read_whole_lines(path):
        try:
            yield decoder.decode(line).record
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise _line_error(path, number, line, error) from error


def order_records(records: list[Record], torn_lines: int) -> JournalContents:
    """Sort records into their fixed order."""
    requests = [record for record in records if isinstance(record, RequestRecord)]
    turns = [record for record in records if isinstance(record, BlockRecord)]
    judgements = [record for record in records if isinstance(record, Judgement)]
    probes = [record for record in records if isinstance(record, BehaviourProbe)]
    return JournalContents(
        records=tuple(sorted(requests, key=lambda r: (r.block, r.arm, r.order_in_block, r.request_id))),
        blocks=tuple(sorted(turns, key=lambda turn: (turn.block, turn.order, turn.arm))),
        torn_lines=torn_lines,
        judgements=tuple(sorted(judgements, key=lambda one: (one.request_id, one.check, one.attempt))),
        behaviours=tuple(sorted(probes, key=lambda one: (one.arm, one.at_ns, one.probe))),
    )


def _line_error(path: Path, number: int, line: bytes, error: Exception) -> StoreError:
    place = f"{path}:{number}"
    if _version_of(line) > SCHEMA_VERSION:
        return StoreError(
            f"this line has schema version {_version_of(line)}, this program reads up to {SCHEMA_VERSION}.",
            place=place,
            fix="use a newer draftproof.",
        )
    return StoreError(
        f"this line is not a record ({error}).",
        place=place,
        fix="restore the file from a copy; lines before this one are whole.",
    )


def _version_of(line: bytes) -> int:
    try:
        return msgspec.json.decode(line, type=_Version).v
    except (msgspec.DecodeError, UnicodeDecodeError):
        return 0
