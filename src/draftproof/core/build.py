"""Which build of draftproof this is: a version tells releases apart, and not two checkouts of one."""

import hashlib
from functools import cache
from pathlib import Path

from draftproof import __version__

_SHOWN = 12  # digits of a digest in a sentence; as many as tell any two builds apart


@cache
def source_sha256() -> str | None:
    """Return the SHA-256 over the package's own Python files as they are at the first call.

    None where they are not files that can be read, as in a zip.
    """
    return digest_folder(Path(__file__).parents[1])


def digest_folder(root: Path) -> str | None:
    """Return one SHA-256 over the Python files below a folder, None where there are none to be read.

    Taken over each file's path within the folder, its length and its bytes, in the order of paths, so that
    the same files give the same digest wherever and from whatever they were installed.
    """
    try:
        sources = {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*.py")}
    except OSError:
        return None
    return digest_sources(sources) if sources else None


def digest_sources(sources: dict[str, bytes]) -> str:
    """Return one SHA-256 over named texts; a text that moves from one file to another changes it."""
    digest = hashlib.sha256()
    for name, content in sorted(sources.items()):
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def name_build(version: str, source: str | None) -> str:
    """Return a build in words, e.g. "0.1.0 (source 0123456789ab)"."""
    return f"{version} (source {source[:_SHOWN]})" if source else version


def is_other_build(version: str, source: str | None) -> bool:
    """Tell whether something is known to come from another build than this one."""
    own = source_sha256()
    return version != __version__ or (source is not None and own is not None and source != own)
