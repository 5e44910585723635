"""Which target a drafter was made for."""

from pathlib import Path

import msgspec

from draftproof.reference.drafters.artefact import TargetIdentity
from draftproof.reference.weights.fetch import RECORD_NAME, ModelRecord


def identify_target(folder: Path, *, vocab_size: int, hidden_size: int) -> TargetIdentity:
    """Return what a target is; a folder without the record of a fetched model is known by its name only."""
    path, origin, sha256 = folder / RECORD_NAME, folder.name, ""
    if path.is_file():
        made = msgspec.json.decode(path.read_bytes(), type=ModelRecord)
        origin, sha256 = made.origin, made.files["model.safetensors"]
    return TargetIdentity(
        origin=origin, weights_sha256=sha256, vocab_size=vocab_size, hidden_size=hidden_size
    )
