"""Random drafters of every family around a tiny random Llama, near enough to it that drafts are accepted."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from tiny_engine import byte_tokenizer, tiny_llama

from draftproof.reference.drafters.attached import AttachedHead, HeadWeights
from draftproof.reference.drafters.lockstep import DraftModel, DraftNetwork, LockstepProposer, TappedProposer
from draftproof.reference.drafters.ngram import NgramProposer
from draftproof.reference.drafters.self_speculation import ExitAdapter, SelfSpeculation
from draftproof.reference.kernels.portable import PortableKernels
from draftproof.reference.models import model as model_module
from draftproof.reference.models.decoder import Decoder, DecoderLayer, from_transformers
from draftproof.reference.models.model import TargetModel
from draftproof.reference.models.ragged import CacheShape
from draftproof.reference.proposer import Proposer
from draftproof.reference.types import GenerationRequest, SamplingParams, SpeculationParams

METHODS = {  # family -> method of a request
    "ngram": "ngram",
    "draft_model": "draft_model",
    "draft_model_reduced": "draft_model",
    "attached": "attached",
    "attached_reduced": "attached",
    "early_exit": "self",
    "early_exit_reduced": "self",
    "skipping": "self",
}
NETWORK_FAMILIES = [family for family in METHODS if family != "ngram"]
TAPS = (1, 2)
_NOISE = 0.05  # relative to the size of the target's weights
_KERNELS = PortableKernels()


def small_target(
    vocab_size: int = 10, *, sharpness: float = 1.0, dtype: torch.dtype = torch.float32
) -> TargetModel:
    """Return a target over few tokens, of which none ends a text."""
    model = tiny_llama(vocab_size=vocab_size, sharpness=sharpness).to(dtype)
    model_module._CHECK_TOLERANCE.setdefault(torch.float64, 1e-6)  # angles are those of float32 there too
    target = TargetModel(model, byte_tokenizer())
    target.eos_ids = frozenset(token_id for token_id in target.eos_ids if token_id < vocab_size)
    return target


def make_proposers(family: str, target: TargetModel, *, noise: float = _NOISE) -> dict[str, Proposer]:
    """Return a fresh drafter of a family by its method."""
    if family == "ngram":
        return {"ngram": NgramProposer(ngram_min=1, ngram_max=3)}
    network = make_network(family, target, noise=noise)
    kind = TappedProposer if isinstance(network, AttachedHead) else LockstepProposer
    return {METHODS[family]: kind(network, target.vocab_size)}


def make_network(family: str, target: TargetModel, *, noise: float = _NOISE) -> DraftNetwork:
    """Return a fresh network of a family."""
    vocabulary = reduced_vocabulary(target) if family.endswith("_reduced") else None
    if family.startswith("draft_model"):
        return DraftModel(noisy_decoder(target, vocabulary, noise), target.cache_shape, vocabulary)
    if family.startswith("attached"):
        shape = replace(target.cache_shape, num_layers=1)
        return attached_head(target, shape, vocabulary, noise)
    decoder = decoder_of(target)
    if family == "skipping":
        return SelfSpeculation(decoder, (1,))
    return SelfSpeculation(decoder, (0,), exit_adapter(decoder, vocabulary, noise), vocabulary)


def reduced_vocabulary(target: TargetModel) -> torch.Tensor:
    """Return most token ids, out of order, so that a row's number is not its token."""
    return torch.arange(1, target.vocab_size).flip(0)


def decoder_of(target: TargetModel) -> Decoder:
    """Return the target's own decoder."""
    assert target.decoder is not None
    return target.decoder


def noisy_decoder(target: TargetModel, vocabulary: torch.Tensor | None, noise: float) -> Decoder:
    """Return a decoder like the target's, every weight off by `noise` of its layer's size."""
    model = tiny_llama(vocab_size=target.vocab_size).to(target.cache_shape.dtype)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        model.model.norm.weight.copy_(decoder_of(target).final_norm)
        for weight in model.parameters():
            weight.add_(noise * weight.std() * torch.randn(weight.shape, generator=generator))
    decoder = from_transformers(model, _KERNELS)
    assert decoder is not None
    decoder.head = _KERNELS.pack(_rows(decoder, vocabulary))
    return decoder


def attached_head(
    target: TargetModel, shape: CacheShape, vocabulary: torch.Tensor | None, noise: float
) -> AttachedHead:
    """Return a head that hands the last tap on, with noise in every product."""
    decoder = decoder_of(target)
    hidden, dtype = target.hidden_size, shape.dtype
    generator = torch.Generator().manual_seed(6)

    def pack(weight: torch.Tensor) -> object:
        return _KERNELS.pack(weight + noise * torch.randn(weight.shape, generator=generator).to(dtype))

    one, none = torch.eye(hidden, dtype=dtype), torch.zeros(hidden, hidden, dtype=dtype)
    weights = HeadWeights(
        fuse=pack(torch.cat((none, one), dim=1)),  # type: ignore[arg-type]
        state_norm=torch.ones(hidden, dtype=dtype),
        embedding_norm=torch.ones(hidden, dtype=dtype),
        mix=pack(torch.cat((one, one), dim=1)),  # type: ignore[arg-type]
        layer=_own_layer(decoder),
        final_norm=decoder.final_norm,
        output=pack(_rows(decoder, vocabulary)),  # type: ignore[arg-type]
        eps=decoder.eps,
    )
    return AttachedHead(decoder, weights, shape, TAPS, vocabulary)


def exit_adapter(decoder: Decoder, vocabulary: torch.Tensor | None, noise: float) -> ExitAdapter:
    """Return an adapter of random small products over the target's output rows."""
    rows = _rows(decoder, vocabulary)
    hidden, dtype = rows.shape[1], rows.dtype
    generator = torch.Generator().manual_seed(7)
    gate_up = noise * torch.randn(4 * hidden, hidden, generator=generator).to(dtype)
    down = noise * torch.randn(hidden, 2 * hidden, generator=generator).to(dtype)
    return ExitAdapter(
        norm=torch.ones(hidden, dtype=dtype),
        gate_up=_KERNELS.pack(gate_up),
        down=_KERNELS.pack(down),
        final_norm=decoder.final_norm,
        output=_KERNELS.pack(rows),
        eps=decoder.eps,
    )


def family_request(
    family: str, request_id: str, prompt: Sequence[int], *, drafts: int, max_tokens: int, **sampling: object
) -> GenerationRequest:
    """Return a request; `drafts` 0 switches speculation off."""
    return GenerationRequest(
        request_id=request_id,
        prompt_token_ids=tuple(prompt),
        sampling=SamplingParams(max_tokens=max_tokens, **sampling),  # type: ignore[arg-type]
        speculation=SpeculationParams(
            method=METHODS[family] if drafts else "off",  # type: ignore[arg-type]
            num_spec_tokens=drafts,
        ),
    )


def _rows(decoder: Decoder, vocabulary: torch.Tensor | None) -> torch.Tensor:
    return decoder.output_rows if vocabulary is None else decoder.output_rows[vocabulary]


def _own_layer(decoder: Decoder) -> DecoderLayer:
    return decoder.layers[-1]
