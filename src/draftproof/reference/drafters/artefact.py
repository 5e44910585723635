"""A trained drafter on disk: a folder with a contract record and weights, whole and for one kind of target.

The record says what the drafter is, for which target, from what it was trained, under which licence, what it
achieved on prompts it had not seen, and the hash of its weights. What does not match it is refused at load.
"""

import hashlib
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from draftproof.core.errors import UsageError
from draftproof.reference.models.decoder import Decoder

RECORD_NAME, WEIGHTS_NAME = "drafter.json", "weights.safetensors"
BUILTIN_PREFIX = "builtin:"
DISTRIBUTION = "draftproof-drafters"
SCHEMA_VERSION = 1
Family = Literal["draft_model", "attached", "self"]
_FIX = "use a folder written by `make drafters`, or a name out of " + BUILTIN_PREFIX + "*"


class TargetIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """The target a drafter was trained for: where its weights come from and the sizes that must agree."""

    origin: str
    weights_sha256: str
    vocab_size: int
    hidden_size: int


class HeldOut(msgspec.Struct, frozen=True, kw_only=True):
    """Acceptance on prompts the training never saw, greedy: counts of one segment at one draft length."""

    segment: str
    prompts: int
    num_spec_tokens: int
    rounds: int
    accepted_per_position: tuple[int, ...]


class _Version(msgspec.Struct, frozen=True):
    schema_version: int = SCHEMA_VERSION


class DrafterRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The contract record of a drafter.

    `reads` are layers of the target, counted from 1: those whose states an attached head reads, or after
    which an early exit leaves. `layers` is how many decoder layers are its own.
    """

    schema_version: int = SCHEMA_VERSION
    name: str
    family: Family
    target: TargetIdentity
    reads: tuple[int, ...]
    layers: int
    vocab_size: int
    parameters: int
    licence: str
    provenance: str
    corpus: dict[str, Any]
    training: dict[str, Any]
    held_out: tuple[HeldOut, ...] = ()
    weights_sha256: str


def write_drafter(folder: Path, record: DrafterRecord, tensors: dict[str, torch.Tensor]) -> DrafterRecord:
    """Write weights and record; return the record with the weights' hash."""
    folder.mkdir(parents=True, exist_ok=True)
    content = save({name: tensor.contiguous() for name, tensor in tensors.items()})
    record = msgspec.structs.replace(record, weights_sha256=hashlib.sha256(content).hexdigest())
    (folder / WEIGHTS_NAME).write_bytes(content)
    write_record(folder, record)
    return record


def write_record(folder: Path, record: DrafterRecord) -> None:
    """Write the record of a folder."""
    (folder / RECORD_NAME).write_bytes(msgspec.json.format(msgspec.json.encode(record)) + b"\n")


def find_drafter(name: str) -> Path:
    """Return the folder of a drafter: a path, or one that ships with the package as builtin:NAME.

    Raises UsageError: there is none.
    """
    if not name.startswith(BUILTIN_PREFIX):
        folder = Path(name)
    else:
        folder = builtin_folder() / name.removeprefix(BUILTIN_PREFIX)
    if not folder.is_dir():
        names = sorted(path.parent.name for path in builtin_folder().glob(f"*/{RECORD_NAME}"))
        shipped = ", ".join(BUILTIN_PREFIX + one for one in names) or "none"
        raise UsageError(
            "there is no such drafter", place=name, fix=f"name a folder, or one that ships: {shipped}"
        )
    return folder


def builtin_folder() -> Path:
    """Return the folder of the drafters that ship, a distribution of their own.

    Raises UsageError: it is not installed.
    """
    found = find_spec(DISTRIBUTION.replace("-", "_"))
    if found is None or found.origin is None:
        raise UsageError(
            "the drafters that ship are not installed",
            place=BUILTIN_PREFIX,
            fix=f"pip install {DISTRIBUTION}",
        )
    return Path(found.origin).parent


def read_record(folder: Path) -> DrafterRecord:
    """Return a folder's record.

    Raises UsageError: it is missing, no record, or of a schema this version does not know.
    """
    try:
        content = (folder / RECORD_NAME).read_bytes()
        version = msgspec.json.decode(content, type=_Version).schema_version
        if version == SCHEMA_VERSION:
            return msgspec.json.decode(content, type=DrafterRecord)
    except OSError as fault:
        raise UsageError(
            f"{RECORD_NAME} cannot be read: {fault.strerror}", place=str(folder), fix=_FIX
        ) from fault
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as fault:
        raise UsageError(
            f"{RECORD_NAME} is no drafter's record: {fault}", place=str(folder), fix=_FIX
        ) from fault
    raise UsageError(
        f"{RECORD_NAME} has schema version {version} and this draftproof reads {SCHEMA_VERSION}",
        place=str(folder),
        fix="use a draftproof that reads it, or train the drafter again",
    )


def read_weights(folder: Path, record: DrafterRecord) -> dict[str, torch.Tensor]:
    """Return a folder's tensors by name, checked against the record's hash.

    Raises UsageError: they are missing or damaged.
    """
    path = folder / WEIGHTS_NAME
    try:
        content = path.read_bytes()
    except OSError as fault:
        raise UsageError(
            f"the drafter's weights cannot be read: {fault.strerror}", place=str(path), fix=_FIX
        ) from fault
    if hashlib.sha256(content).hexdigest() != record.weights_sha256:
        raise UsageError(
            "the drafter's weights are damaged: their hash is not the record's", place=str(path), fix=_FIX
        )
    try:
        return load(content)
    except SafetensorError as fault:
        raise UsageError(
            f"the drafter's weights are no safetensors: {fault}", place=str(path), fix=_FIX
        ) from fault


Tensors = Mapping[str, torch.Tensor]
_SHAPE_FIX = "use the record and the weights of one `make drafters`"


def check_tensors(record: DrafterRecord, tensors: Tensors, decoder: Decoder, folder: Path) -> None:
    """Check names, shapes and values of a drafter's tensors.

    `record`: says the family, the layers and the vocabulary. Raises UsageError: a tensor is missing, of
    another shape, not finite, or no list of token ids.
    """
    for name, shape in expected_shapes(record, tensors, decoder).items():
        fault = _fault_of(tensors.get(name), shape)
        if fault is not None:
            raise UsageError(f"the drafter's tensor {name} {fault}", place=str(folder), fix=_SHAPE_FIX)
    widths = [tensor.shape[1] for tensor in tensors.values() if tensor.dim() == 2]
    if not decoder.kernels.supports(decoder.layers[0].attention.head_size, *widths):
        raise UsageError(
            "the drafter has layers of a width that this target's kernels do not take",
            place=str(folder),
            fix="use widths that are multiples of 8, or serve with --kernels portable",
        )
    vocabulary, size = tensors["vocabulary"], len(decoder.embedding)
    known = (vocabulary >= 0) & (vocabulary < size)
    if (
        not len(vocabulary)
        or vocabulary.is_floating_point()
        or not bool(known.all())
        or len(set(vocabulary.tolist())) < len(vocabulary)
    ):
        raise UsageError(
            f"the drafter's vocabulary does not list token ids below {size}, each once",
            place=str(folder),
            fix=_SHAPE_FIX,
        )


def expected_shapes(record: DrafterRecord, tensors: Tensors, decoder: Decoder) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor by name; the width of a feed-forward is what its first tensor says."""
    hidden = decoder.embedding.shape[1]
    shapes: dict[str, tuple[int, ...]] = {"vocabulary": (record.vocab_size,), "final_norm": (hidden,)}
    if record.family == "attached":
        shapes |= {
            "fuse": (hidden, len(record.reads) * hidden),
            "state_norm": (hidden,),
            "embedding_norm": (hidden,),
            "mix": (hidden, 2 * hidden),
        }
        return shapes | _layer_shapes("layer.", tensors, decoder)
    if record.family == "draft_model":
        for index in range(record.layers):
            shapes |= _layer_shapes(f"layers.{index}.", tensors, decoder)
        return shapes
    return shapes | {"norm": (hidden,)} | _feed_forward_shapes("", tensors, hidden)


def _layer_shapes(prefix: str, tensors: Tensors, decoder: Decoder) -> dict[str, tuple[int, ...]]:
    hidden, attention = decoder.embedding.shape[1], decoder.layers[0].attention
    heads = attention.query_heads + 2 * attention.kv_heads
    return {
        prefix + "input_norm": (hidden,),
        prefix + "qkv": (heads * attention.head_size, hidden),
        prefix + "output": (hidden, attention.query_heads * attention.head_size),
        prefix + "mlp_norm": (hidden,),
        **_feed_forward_shapes(prefix, tensors, hidden),
    }


def _feed_forward_shapes(prefix: str, tensors: Tensors, hidden: int) -> dict[str, tuple[int, ...]]:
    first = tensors.get(prefix + "gate_up")
    width = 1 if first is None or not first.dim() else max(1, len(first) // 2)
    return {prefix + "gate_up": (2 * width, hidden), prefix + "down": (hidden, width)}


def _fault_of(tensor: torch.Tensor | None, shape: tuple[int, ...]) -> str | None:
    if tensor is None:
        return "is missing"
    if tuple(tensor.shape) != shape:
        return f"has the shape {list(tensor.shape)} where {list(shape)} is needed"
    if not bool(tensor.isfinite().all()):
        return "holds numbers that are not finite"
    return None
