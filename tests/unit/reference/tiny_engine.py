"""A tiny random Llama and a byte tokenizer: real model code, milliseconds a step."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from draftproof.reference.engine import Engine
from draftproof.reference.models.model import TargetModel
from draftproof.reference.proposer import Drafts, Proposer
from draftproof.reference.types import (
    EngineConfig,
    GenerationRequest,
    RoundOutput,
    SamplingParams,
    SpeculationParams,
)

EOS_ID = 256
TIE_MARGIN = 1e-4


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer whose ids 0 to 255 are the bytes in the order of their ids, 256 ends a text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={char: index for index, char in enumerate(alphabet)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<end>")  # noqa: S106 - a token, not a secret


def tiny_llama(*, vocab_size: int = 260, seed: int = 0, sharpness: float = 1.0) -> LlamaForCausalLM:
    """Return a two-layer Llama with grouped queries; `sharpness` scales its logits."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.3,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=EOS_ID if vocab_size > EOS_ID else None,
        pad_token_id=0,
    )
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        model.model.norm.weight.mul_(sharpness)
    return model


FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", "tie_word_embeddings": True},
    "llama untied": {"model_type": "llama", "tie_word_embeddings": False},
    "llama biased": {"model_type": "llama", "attention_bias": True, "mlp_bias": True},
    "qwen2": {"model_type": "qwen2", "tie_word_embeddings": True},
    "qwen3": {"model_type": "qwen3", "head_dim": 32},
    "gemma": {"model_type": "gemma", "head_dim": 16},
    "gpt2": {"model_type": "gpt2", "n_inner": 64},
}
FUSED_FAMILIES = tuple(name for name in FAMILIES if name not in ("gemma", "gpt2"))


def tiny_config(family: str, **changes: object) -> Any:
    """Return the configuration of a two-layer model whose sizes the native kernels take."""
    shape = {
        "vocab_size": 260,
        "hidden_size": 64,
        "intermediate_size": 80,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "initializer_range": 0.2,
        "bos_token_id": None,
        "eos_token_id": EOS_ID,
        "pad_token_id": 0,
    } | FAMILIES[family]
    if shape["model_type"] == "gpt2":  # it has names of its own, for some of which the others stand too
        for name in ("intermediate_size", "num_key_value_heads"):
            shape.pop(name)
    return AutoConfig.for_model(**(shape | changes))


def tiny_model(family: str, *, seed: int = 0, dtype: torch.dtype = torch.float32, **changes: object) -> Any:
    """Return a random model of a family, its biases and norms random too."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_config(tiny_config(family, **changes), attn_implementation="sdpa")
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    return model.to(dtype).eval()


@contextmanager
def recorded_logits(target: TargetModel) -> Iterator[dict[tuple[int, ...], torch.Tensor]]:
    """Record, while it is open, the logits a target gives by all the tokens in front of them."""
    logits_by_context: dict[tuple[int, ...], torch.Tensor] = {}
    tokens_of: dict[int, list[int]] = {}
    forward = target.forward

    def recording(token_ids: Sequence[int], spans: Any, logit_rows: Sequence[int], *more: Any) -> Any:
        contexts, start = [], 0
        for cache, count in spans:
            known = tokens_of.setdefault(id(cache), [])
            del known[cache.length :]
            for token_id in token_ids[start : start + count]:
                known.append(token_id)
                contexts.append(tuple(known))
            start += count
        result = forward(token_ids, spans, logit_rows, *more)
        for row, logits in zip(logit_rows, result.logits, strict=True):
            logits_by_context[contexts[row]] = logits.clone()
        return result

    target.forward = recording  # type: ignore[method-assign,assignment]
    try:
        yield logits_by_context
    finally:
        del target.forward


def tiny_target(**llama: float) -> TargetModel:
    """Return the engine's view of a tiny Llama."""
    return TargetModel(tiny_llama(**llama), byte_tokenizer())  # type: ignore[arg-type]


def make_engine(
    target: TargetModel, *, proposers: Mapping[str, Proposer] | None = None, **limits: int
) -> Engine:
    """Return an engine around a target; `limits` are fields of its configuration."""
    config = EngineConfig(model_path="tiny", **{"max_model_len": 512, **limits})  # type: ignore[arg-type]
    return Engine(target, config, proposers=proposers)


def make_request(
    request_id: str, prompt: Sequence[int], *, drafts: int = 0, max_tokens: int = 24, **sampling: object
) -> GenerationRequest:
    """Return a request; `drafts` 0 switches speculation off."""
    return GenerationRequest(
        request_id=request_id,
        prompt_token_ids=tuple(prompt),
        sampling=SamplingParams(max_tokens=max_tokens, **sampling),  # type: ignore[arg-type]
        speculation=SpeculationParams(method="ngram" if drafts else "off", num_spec_tokens=drafts),
    )


def run_all(engine: Engine, requests: Sequence[GenerationRequest]) -> dict[str, list[RoundOutput]]:
    """Queue all requests, step until nothing is left, and return every output by request."""
    outputs: dict[str, list[RoundOutput]] = {request.request_id: [] for request in requests}
    for request in requests:
        engine.add_request(request)
    while engine.has_work:
        for request_id, output in engine.step():
            outputs[request_id].append(output)
    return outputs


def token_ids_of(outputs: Sequence[RoundOutput]) -> list[int]:
    """Return every delivered token."""
    return [token_id for output in outputs for token_id in output.token_ids]


def repetitive_prompt(generator: torch.Generator, vocab_size: int = 256) -> list[int]:
    """Return a prompt that repeats a random phrase, so that n-gram lookup finds matches."""
    phrase = torch.randint(0, vocab_size, (6,), generator=generator).tolist()
    return [*phrase, *phrase, *phrase[:3]]


class OracleProposer:
    """Drafts what a given table says will follow, right or wrong; the table is by prompt."""

    def __init__(self, continuations: Mapping[tuple[int, ...], Sequence[int]], prompt_tokens: int) -> None:
        self._continuations = continuations
        self._prompt_tokens = prompt_tokens

    def propose(self, contexts):
        return Drafts(token_ids=[self._draft(context) for context in contexts])

    def release(self, request_id: str) -> None:
        """Keep nothing."""

    def _draft(self, context) -> list[int]:
        known = self._continuations[tuple(context.token_ids[: self._prompt_tokens])]
        done = len(context.token_ids) - self._prompt_tokens
        return list(known[done : done + context.max_draft_tokens])


class FakeFailure(Exception):  # noqa: N818 - it stands for any exception of a library
    """What a test makes a model raise."""
