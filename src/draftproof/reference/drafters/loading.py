"""Puts a trained drafter, or any small causal LM, on a loaded target."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from draftproof.core.errors import UsageError
from draftproof.reference.drafters.artefact import (
    BUILTIN_PREFIX,
    RECORD_NAME,
    DrafterRecord,
    check_tensors,
    find_drafter,
    read_record,
    read_weights,
)
from draftproof.reference.drafters.attached import AttachedHead, HeadWeights
from draftproof.reference.drafters.lockstep import DraftModel, LockstepProposer, TappedProposer
from draftproof.reference.drafters.self_speculation import (
    BUILTIN_SKIP,
    SKIP_PREFIX,
    ExitAdapter,
    SelfSpeculation,
    check_layer_target,
    parse_layers,
    resolve_layers,
)
from draftproof.reference.models.decoder import Decoder, DecoderLayer
from draftproof.reference.models.model import TargetModel, load_decoder
from draftproof.reference.models.ragged import CacheShape
from draftproof.reference.proposer import Proposer
from draftproof.reference.types import EngineConfig

Tensors = Mapping[str, torch.Tensor]
BUILTIN_BY_METHOD = {
    name: BUILTIN_PREFIX + name.replace("_", "-") for name in ("draft_model", "attached")
} | {"self": BUILTIN_PREFIX + "early-exit"}


def load_drafters(names: Sequence[str], target: TargetModel) -> dict[str, Proposer]:
    """Return proposers by method.

    `names`: folders, builtin:NAME, or layers:LIST for plain layer skipping. Raises UsageError: a drafter is
    missing, damaged or for another target, or two serve the same method.
    """
    proposers: dict[str, Proposer] = {}
    for name in names:
        method, proposer = load_drafter(name, target)
        if method in proposers:
            raise UsageError(f"two drafters serve the method {method}", place=name, fix="name one of them")
        proposers[method] = proposer
    return proposers


def load_drafter(name: str, target: TargetModel) -> tuple[str, Proposer]:
    """Return a drafter's method and its proposer on a target; see `load_drafters`."""
    decoder = target.decoder
    if decoder is None:
        raise UsageError(
            "this target runs on the layer code of transformers and cannot be taken apart for a drafter",
            place=name,
            fix="use off or ngram, or a target of the Llama, Qwen2 or Qwen3 shape",
        )
    if name == BUILTIN_SKIP:
        check_layer_target(target.vocab_size, target.hidden_size, len(decoder.layers))
        name = resolve_layers(name)
    if name.startswith(SKIP_PREFIX):
        layers = parse_layers(name, len(decoder.layers))
        return "self", LockstepProposer(SelfSpeculation(decoder, layers), target.vocab_size)
    folder = find_drafter(name)
    if not (folder / RECORD_NAME).is_file() and (folder / "config.json").is_file():
        return "draft_model", _foreign_model(folder, target)
    record = read_record(folder)
    _check_target(record, target, folder)
    _check_places(record, len(decoder.layers), folder)
    tensors = read_weights(folder, record)
    check_tensors(record, tensors, decoder, folder)
    return record.family, _build(record, tensors, target, decoder)


def _build(record: DrafterRecord, tensors: Tensors, target: TargetModel, decoder: Decoder) -> Proposer:
    dtype = decoder.embedding.dtype
    tensors = {name: _place(tensor, decoder, dtype) for name, tensor in tensors.items()}
    vocabulary = tensors["vocabulary"]
    if record.family == "attached":
        head = AttachedHead(
            decoder, _head_weights(tensors, decoder), _layers_shape(target, 1), record.reads, vocabulary
        )
        return TappedProposer(head, target.vocab_size)
    if record.family == "draft_model":
        network = DraftModel(
            _draft_decoder(record, tensors, decoder), _layers_shape(target, record.layers), vocabulary
        )
        return LockstepProposer(network, target.vocab_size)
    adapter = ExitAdapter(
        norm=tensors["norm"],
        gate_up=decoder.kernels.pack(tensors["gate_up"]),
        down=decoder.kernels.pack(tensors["down"]),
        final_norm=tensors["final_norm"],
        output=decoder.kernels.pack(decoder.output_rows[vocabulary]),
        eps=decoder.eps,
    )
    early = SelfSpeculation(decoder, range(record.reads[0]), adapter, vocabulary)
    return LockstepProposer(early, target.vocab_size)


def _place(tensor: torch.Tensor, decoder: Decoder, dtype: torch.dtype) -> torch.Tensor:
    moved = tensor.to(decoder.embedding.device)
    return moved.to(dtype) if moved.is_floating_point() else moved.long()


def _layer(tensors: Tensors, prefix: str, decoder: Decoder) -> DecoderLayer:
    """Return a layer of the target's shape from trained tensors."""
    kernels, shape = decoder.kernels, decoder.layers[0].attention
    return DecoderLayer(
        input_norm=tensors[prefix + "input_norm"],
        qkv=kernels.pack(tensors[prefix + "qkv"]),
        attention=replace(shape, query_norm=None, key_norm=None),
        output=kernels.pack(tensors[prefix + "output"]),
        mlp_norm=tensors[prefix + "mlp_norm"],
        gate_up=kernels.pack(tensors[prefix + "gate_up"]),
        down=kernels.pack(tensors[prefix + "down"]),
    )


def _head_weights(tensors: Tensors, decoder: Decoder) -> HeadWeights:
    kernels = decoder.kernels
    return HeadWeights(
        fuse=kernels.pack(tensors["fuse"]),
        state_norm=tensors["state_norm"],
        embedding_norm=tensors["embedding_norm"],
        mix=kernels.pack(tensors["mix"]),
        layer=_layer(tensors, "layer.", decoder),
        final_norm=tensors["final_norm"],
        output=kernels.pack(decoder.output_rows[tensors["vocabulary"]]),
        eps=decoder.eps,
    )


def _draft_decoder(record: DrafterRecord, tensors: Tensors, decoder: Decoder) -> Decoder:
    """Return the trained layers between the target's embedding and a part of its output rows."""
    return Decoder(
        decoder.kernels,
        embedding=decoder.embedding,
        layers=[_layer(tensors, f"layers.{index}.", decoder) for index in range(record.layers)],
        final_norm=tensors["final_norm"],
        head=decoder.kernels.pack(decoder.output_rows[tensors["vocabulary"]]),
        output_rows=decoder.output_rows,
        inverse_frequencies=decoder.inverse_frequencies,
        eps=decoder.eps,
    )


def _layers_shape(target: TargetModel, layers: int) -> CacheShape:
    return replace(target.cache_shape, num_layers=layers)


def _check_target(record: DrafterRecord, target: TargetModel, folder: Path) -> None:
    wanted = (record.target.vocab_size, record.target.hidden_size)
    found = (target.vocab_size, target.hidden_size)
    if wanted != found:
        raise UsageError(
            f"the drafter was made for a target of vocabulary {wanted[0]} and width {wanted[1]} "
            f"({record.target.origin}), this one has {found[0]} and {found[1]}",
            place=str(folder),
            fix="use a drafter made for this target",
        )


def _check_places(record: DrafterRecord, num_layers: int, folder: Path) -> None:
    """Check which of the target's layers a drafter reads, and that it has the layers it needs."""
    reads, readers = record.reads, {"attached": bool(record.reads), "self": len(record.reads) == 1}
    if not all(1 <= layer <= num_layers for layer in reads) or not readers.get(record.family, True):
        raise UsageError(
            f"the drafter reads the layers {list(reads)} of its target, which has {num_layers}",
            place=str(folder),
            fix="use a drafter made for this target",
        )
    if record.family == "draft_model" and record.layers < 1:
        raise UsageError(
            f"the record says that the draft model has {record.layers} layers",
            place=str(folder),
            fix="use the record and the weights of one `make drafters`",
        )


def _foreign_model(folder: Path, target: TargetModel) -> Proposer:
    """Return a proposer around a causal LM folder with the target's own vocabulary."""
    decoder, shape, vocab_size = load_decoder(folder, target)
    if decoder is None:
        raise UsageError(
            "the draft model is not of the Llama, Qwen2 or Qwen3 shape",
            place=str(folder),
            fix="choose another draft model",
        )
    if vocab_size != target.vocab_size:
        raise UsageError(
            f"the draft model has a vocabulary of {vocab_size} and the target one of {target.vocab_size}",
            place=str(folder),
            fix="choose a draft model with the target's tokenizer",
        )
    return LockstepProposer(DraftModel(decoder, shape), target.vocab_size)


def choose_drafters(config: EngineConfig) -> tuple[str, ...]:
    """Return the drafters an engine loads: those named, else the one that ships for its default method."""
    builtin = BUILTIN_BY_METHOD.get(config.speculation.method)
    return config.drafters or (() if builtin is None else (builtin,))


def check_default(method: str, methods: Iterable[str]) -> None:
    """Raise UsageError if an engine's default method is none of those its drafters serve."""
    served = sorted(methods)
    if method != "off" and method not in served:
        raise UsageError(
            f"no drafter was named for the default method {method}; those named serve {', '.join(served)}",
            place="drafter",
            fix=f"leave it out to take what ships for {method}, or name a drafter of that family too",
        )


def describe_drafters(names: Sequence[str]) -> dict[str, str]:
    """Return settings that identify drafters: for each method its name and the hash of its weights."""
    settings: dict[str, str] = {}
    for name in map(resolve_layers, names):
        folder = None if name.startswith(SKIP_PREFIX) else find_drafter(name)
        if folder is not None and (folder / RECORD_NAME).is_file():
            record = read_record(folder)
            settings[f"drafter.{record.family}"] = record.name
            settings[f"drafter.{record.family}.sha256"] = record.weights_sha256
            settings[f"drafter.{record.family}.licence"] = record.licence
            settings[f"drafter.{record.family}.provenance"] = record.provenance
        else:
            settings["drafter.self" if folder is None else "drafter.draft_model"] = name
    return settings
