"""Whether a body is compressed, by what its headers say and by its first bytes. Pure.

A compressed stream is never unpacked: the packer holds bytes back, so that the time at which a token arrived
says nothing about when it was sent.
"""

# First bytes of gzip (RFC 1952, 2.3.1) and Zstandard (RFC 8878, 3.1.1): no event stream begins so.
_MAGIC = ((b"\x1f\x8b", "gzip"), (b"\x28\xb5\x2f\xfd", "zstd"))
LONGEST_MAGIC = max(len(magic) for magic, _ in _MAGIC)


def describe_packing(content_encoding: str, head: bytes) -> str | None:
    """Return how a body is compressed, as a phrase, None where nothing says that it is.

    `content_encoding` is the header's value, "" if absent; `head` the body's first bytes.
    """
    named = [name.strip().lower() for name in content_encoding.split(",")]
    packed = [name for name in named if name not in {"", "identity"}]
    if packed:
        return f"compressed ({', '.join(packed)})"
    found = next((name for magic, name in _MAGIC if head.startswith(magic)), None)
    return None if found is None else f"compressed ({found}, which its headers do not say)"
