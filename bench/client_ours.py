"""Our side of the client bench: drives one server of known timing and writes its records as MessagePack.

Usage: client_ours.py PORT STREAMS REQUESTS STAGGER_S OUT
"""

import sys
from pathlib import Path

import msgspec
import uvloop

from draftproof.load.client_check import drive, make_items, make_turn


def main() -> None:
    """Drive the load and keep what was read."""
    port, streams, requests, stagger_s, out = sys.argv[1:]
    items = make_items(int(requests))
    turn = make_turn("bench", int(streams), items)
    records, _, _ = uvloop.run(drive(turn, f"http://127.0.0.1:{port}", items, float(stagger_s)))
    Path(out).write_bytes(msgspec.msgpack.encode(records))


if __name__ == "__main__":
    if len(sys.argv) != 6:
        sys.exit(__doc__)
    main()
