"""What a drafter's tensors must look like beside its target: found at load, not in a request."""

from collections.abc import Mapping
from pathlib import Path

import torch

from draftproof.errors import UsageError
from draftproof.reference.drafters.artefact import DrafterRecord
from draftproof.reference.models.decoder import Decoder

Tensors = Mapping[str, torch.Tensor]
_FIX = "use the record and the weights of one `make drafters`"


def check_tensors(record: DrafterRecord, tensors: Tensors, decoder: Decoder, folder: Path) -> None:
    """Check names, shapes and values of a drafter's tensors.

    Args:
        record: says the family, the layers and the vocabulary.
        tensors: by name, as read.
        decoder: the target's.
        folder: where the drafter lies.

    Raises:
        UsageError: a tensor is missing, of another shape, not finite, or no list of token ids.
    """
    for name, shape in expected_shapes(record, tensors, decoder).items():
        fault = _fault_of(tensors.get(name), shape)
        if fault is not None:
            raise UsageError(f"the drafter's tensor {name} {fault}", place=str(folder), fix=_FIX)
    if not decoder.kernels.supports(decoder.layers[0].attention.head_size, *_widths(tensors)):
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
            fix=_FIX,
        )


def _widths(tensors: Tensors) -> list[int]:
    return [tensor.shape[1] for tensor in tensors.values() if tensor.dim() == 2]


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
