"""What was added to a journal since it was last read, for a run that decides by what it has measured."""

from pathlib import Path

import msgspec

from draftproof.errors import StoreError
from draftproof.records import BlockRecord, RequestRecord
from draftproof.store.framing import DamagedLineError, open_frame
from draftproof.store.lines import write_error

_DECODERS: dict[str, msgspec.json.Decoder[RequestRecord] | msgspec.json.Decoder[BlockRecord]] = {
    "request": msgspec.json.Decoder(RequestRecord),
    "block": msgspec.json.Decoder(BlockRecord),
}


class JournalTail:
    """Reads requests and turns as they come, from the end that the journal has when this is made.

    Every file of the folder is followed, those of load workers that begin later too. A line without its end
    is left for the next time.

    Args:
        folder: the journal's folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read = {path: path.stat().st_size for path in folder.glob("*.jsonl")}

    def read(self) -> list[RequestRecord | BlockRecord]:
        """Return what was added since the last call, file by file.

        Raises:
            StoreError: a file cannot be read, or a line of it was damaged.
        """
        return [record for path in sorted(self._folder.glob("*.jsonl")) for record in self._read_file(path)]

    def _read_file(self, path: Path) -> list[RequestRecord | BlockRecord]:
        start = self._read.get(path, 0)
        try:
            with path.open("rb") as file:
                file.seek(start)
                added = file.read()
        except OSError as error:
            raise write_error(path, error) from error
        whole, end, _ = added.rpartition(b"\n")
        self._read[path] = start + len(whole) + len(end)
        found = (_decode(path, line) for line in whole.splitlines())
        return [record for record in found if record is not None]


def _decode(path: Path, line: bytes) -> RequestRecord | BlockRecord | None:
    """Return the record of a line, None where it is of another kind."""
    try:
        frame = open_frame(line)
        decoder = _DECODERS.get(frame.kind)
        return None if decoder is None else decoder.decode(frame.record)
    except (DamagedLineError, msgspec.DecodeError) as error:
        raise StoreError(
            f"a line that this run has just written is damaged ({error}).", place=str(path)
        ) from error
