"""Seeded order without a random generator: keys are sorted by a hash of the seed and the key.

Pure. The order is the same on every machine and Python version, and a key's place depends on its name, not
on its place in the file.
"""

import hashlib
from collections.abc import Iterable


def hash_number(*parts: str | int) -> int:
    """Return a 256-bit number that depends on every part and on their order."""
    digest = hashlib.sha256("\x1f".join(str(part) for part in parts).encode()).digest()
    return int.from_bytes(digest, "big")


def order_by_seed(keys: Iterable[str], *salt: str | int) -> list[str]:
    """Return the keys in an order drawn by `salt`; equal keys stay together."""
    return sorted(keys, key=lambda key: hash_number(*salt, key))
