"""The target model: loaded from a Hugging Face folder or id, run over a ragged batch, checked before use.

Configuration, weights and tokenizer come from transformers, and the layer code too where the engine has no
decoder of that shape. What its configuration shows to run wrong is refused before any weight is read;
whatever passes is compared with the model's own logits once at load.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from draftproof.core.errors import EngineError, UsageError
from draftproof.reference.kernels import Kernels
from draftproof.reference.kernels.native import NativeKernels, select_kernels
from draftproof.reference.kernels.portable import PortableKernels
from draftproof.reference.models.decoder import Decoder, from_transformers
from draftproof.reference.models.linear import hook_model
from draftproof.reference.models.ragged import CacheShape, RaggedBatch, SequenceCache
from draftproof.reference.types import EngineConfig

_EXPERT_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_LENGTH_DEPENDENT_ROPE = frozenset({"dynamic", "longrope"})


def check_supported(model_config: Any, model_path: str, max_model_len: int) -> None:
    """Raise UsageError, naming what is unsupported, unless the engine takes this model at this length.

    `model_config`: the model's configuration as transformers reads it. `model_path`: where it comes from, for
    messages. `max_model_len`: longest sequence wanted, tokens.
    """
    reason = unsupported_reason(model_config)
    if reason is not None:
        raise UsageError(
            f"the model {reason}",
            place=model_path,
            fix="choose a decoder-only model whose layers all use full attention, "
            "such as Llama, Qwen2, Qwen3, Gemma or GPT-2",
        )
    longest = getattr(model_config.get_text_config(), "max_position_embeddings", None)
    if longest is not None and 0 < longest < max_model_len:
        raise UsageError(
            f"max_model_len {max_model_len} is above the model's {longest} positions",
            place="max_model_len",
            fix=f"use at most {longest}",
        )


def unsupported_reason(model_config: Any) -> str | None:
    """Return what speaks against a model, as a predicate of a sentence, or None."""
    text = model_config.get_text_config()
    if getattr(model_config, "is_encoder_decoder", False):
        return "is an encoder-decoder"
    if type(model_config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        return f"is of type {model_config.model_type!r}, which is no causal language model"
    return _layers_reason(text) or _attention_reason(text) or _code_reason(model_config)


def _layers_reason(text: Any) -> str | None:
    others = set(getattr(text, "layer_types", None) or ()) - {"full_attention"}
    if others:
        return f"has layers of type {', '.join(sorted(others))}"
    if not getattr(text, "num_attention_heads", None):
        return "has no attention heads"
    if any((getattr(text, name, None) or 0) > 1 for name in _EXPERT_COUNTS):
        # Which experts a token takes is a threshold: rounding that differs by the number of rows turns it.
        return "is a mixture of experts"
    return None


def _attention_reason(text: Any) -> str | None:
    if getattr(text, "attn_logit_softcapping", None) is not None:
        return "caps its attention scores (attn_logit_softcapping)"
    windowed = getattr(text, "layer_types", None) is None and getattr(text, "use_sliding_window", True)
    if windowed and getattr(text, "sliding_window", None) is not None:
        return f"attends within a sliding window of {text.sliding_window} tokens"
    rope_type = (getattr(text, "rope_parameters", None) or {}).get("rope_type")
    if rope_type in _LENGTH_DEPENDENT_ROPE:
        return f"has rotary angles that depend on the longest sequence of a batch ({rope_type})"
    return None


def _code_reason(model_config: Any) -> str | None:
    code = MODEL_FOR_CAUSAL_LM_MAPPING[type(model_config)]
    if not getattr(code, "_supports_sdpa", False):
        return f"runs on layer code that takes no attention from outside ({code.__name__})"
    return None


_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_CHECK_TOKENS = 12
_LAYER_CODE_FAULTS = (TypeError, AttributeError, LookupError, ValueError, RuntimeError)
_LOADING_FAULTS = (*_LAYER_CODE_FAULTS, OSError, ImportError)
# Error of a row of logits, root mean square relative to the row's own: the worst row. In bfloat16 rounding
# alone puts a single row off by a fifth while the others agree within a few per cent: the median row there.
_CHECK_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 5e-2}


class TargetPass(NamedTuple):
    """What a forward pass gave: [logit rows, vocab] and, if tapped, [tokens, taps, hidden] states."""

    logits: torch.Tensor
    states: torch.Tensor | None = None


class TargetModel:
    """A causal language model behind the three things the engine needs: logits, text, limits.

    A model of Llama's shape runs on the engine's own decoder; any other runs on the layer code of
    transformers with the engine's attention, and can neither be tapped nor taken apart. `model`: a
    transformers causal LM; it is consumed: its weights may be repacked and its layers replaced. `kernels`:
    the arithmetic; portable ones unless given. Raises UsageError: the model's layer code cannot run through
    the engine; EngineError: the model computes something else through the engine than on its own.
    """

    def __init__(self, model: Any, tokenizer: Any, kernels: Kernels | None = None) -> None:
        model = model.eval()
        self.tokenizer = tokenizer
        text_config = model.config.get_text_config()
        heads = text_config.num_attention_heads
        kv_heads = getattr(text_config, "num_key_value_heads", None) or heads
        self.vocab_size = int(text_config.vocab_size)
        self.hidden_size = int(text_config.hidden_size)
        self.eos_ids = _collect_eos_ids(model, tokenizer)
        self.cache_shape = CacheShape(
            num_layers=text_config.num_hidden_layers,
            num_kv_heads=kv_heads,
            head_dim=getattr(text_config, "head_dim", None) or text_config.hidden_size // heads,
            dtype=model.dtype,
            device=model.device,
        )
        token_ids = [(7 * index + 1) % self.vocab_size for index in range(_CHECK_TOKENS)]
        with torch.inference_mode():
            own = model(input_ids=torch.tensor([token_ids], device=model.device), use_cache=False).logits[0]
        try:
            self.decoder = from_transformers(model, kernels or PortableKernels())
            self._hooked = None if self.decoder is not None else hook_model(model)
            check_faithful(self, token_ids, own)
        except torch.OutOfMemoryError:
            raise  # the model is not to blame
        except _LAYER_CODE_FAULTS as fault:
            raise UsageError(
                f"the model's layer code does not run with the engine's attention: {_first_line(fault)}",
                place=type(model).__name__,
                fix="choose a model of the shape of Llama, Qwen2, Qwen3, Gemma or GPT-2",
            ) from fault

    @property
    def kernels_name(self) -> str:
        """Which arithmetic runs: native, portable, or the layer code of transformers."""
        return "transformers" if self.decoder is None else self.decoder.kernels.name

    @contextmanager
    def torch_threads(self) -> Iterator[None]:
        """Keep torch to one thread where the kernels have their own, which its idle ones would hold up."""
        usual = torch.get_num_threads()
        if self.kernels_name == NativeKernels.name:
            torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(usual)

    def decode(self, token_ids: list[int]) -> str:
        """Return the text of token ids, special tokens left out."""
        text: str = self.tokenizer.decode(
            token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text

    @torch.inference_mode()
    def forward(
        self,
        token_ids: Sequence[int],
        spans: Sequence[tuple[SequenceCache, int]],
        logit_rows: Sequence[int],
        taps: Sequence[int] = (),
    ) -> TargetPass:
        """Run the new tokens of all sequences in one pass; the caches grow by them.

        `token_ids`: the packed row, all new tokens of the first sequence, then of the second, and so on.
        `spans`: per sequence its cache and its number of new tokens. `logit_rows`: positions of the packed
        row whose logits are wanted. `taps`: layers, counted from 1 in rising order, whose output is wanted
        too.
        """
        batch = RaggedBatch(spans)
        device = self.cache_shape.device
        rows = torch.tensor([*logit_rows], dtype=torch.long, device=device)
        if self.decoder is None:
            result = self._hooked_pass(token_ids, batch, rows)
        else:
            result = _decoder_pass(self.decoder, token_ids, batch, rows, taps)
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # the caller times this pass
        batch.advance()
        return result

    def _hooked_pass(self, token_ids: Sequence[int], batch: RaggedBatch, rows: torch.Tensor) -> TargetPass:
        device = rows.device
        kept = rows if len(rows) else rows.new_tensor([len(token_ids) - 1])  # no layer runs on no rows
        logits: torch.Tensor = self._hooked(  # type: ignore[misc]  # one of the two is always there
            input_ids=torch.tensor([token_ids], device=device),
            position_ids=torch.tensor([batch.position_ids()], device=device),
            use_cache=False,
            logits_to_keep=kept,
            ragged_batch=batch,
        ).logits[0]
        return TargetPass(logits[: len(rows)])


def _decoder_pass(
    decoder: Decoder, token_ids: Sequence[int], batch: RaggedBatch, rows: torch.Tensor, taps: Sequence[int]
) -> TargetPass:
    hidden, angles = decoder.embed(token_ids), decoder.angles(batch)
    start, kept = 0, []
    for tap in taps:
        hidden = decoder.run(hidden, batch, range(start, tap), angles)
        kept.append(hidden.clone())  # later layers add to `hidden` in place
        start = tap
    hidden = decoder.run(hidden, batch, range(start, len(decoder.layers)), angles)
    states = torch.stack(kept, dim=1) if kept else None
    return TargetPass(decoder.logits(hidden.index_select(0, rows)), states)


@torch.inference_mode()
def check_faithful(target: TargetModel, token_ids: Sequence[int], own_logits: torch.Tensor) -> None:
    """Raise EngineError unless the engine's path gives the model's `own_logits` [tokens, vocab] for a text.

    The text goes through in two passes of several tokens and one of a single token, which also warms up.
    """
    cache = SequenceCache(target.cache_shape)
    cuts = [0, len(token_ids) // 2, len(token_ids) - 1, len(token_ids)]
    parts = []
    for start, stop in pairwise(cuts):
        parts.append(
            target.forward(token_ids[start:stop], [(cache, stop - start)], range(stop - start)).logits
        )
    own = own_logits.float()
    misses = (torch.cat(parts).float() - own).square().mean(1).sqrt()  # [tokens]
    errors = misses / own.square().mean(1).sqrt()
    error = float(errors.max() if own_logits.dtype == torch.float32 else errors.median())
    if not error <= _CHECK_TOLERANCE[own_logits.dtype]:
        raise EngineError(
            f"the engine's logits differ from the model's own by {error:.1%}",
            fix="choose a model with plain causal attention",
        )


def load_target(config: EngineConfig) -> TargetModel:
    """Load the model an engine is configured with.

    Raises UsageError: there is no such model, or the engine does not support it; EngineError: the files
    cannot be loaded, or the model does not compute faithfully.
    """
    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    with _clear_faults(config.model_path):
        model = _load_model(config.model_path, _DTYPES[config.dtype], config.max_model_len)
        tokenizer = AutoTokenizer.from_pretrained(config.model_path)
        kernels = select_kernels(config.kernels, dtype=model.dtype, device=torch.device(config.device))
        return TargetModel(model.to(config.device), tokenizer, kernels)


def load_decoder(folder: Path, target: TargetModel) -> tuple[Decoder | None, CacheShape, int]:
    """Load a causal LM that drafts for a target: its decoder or None, one token's cache, its vocabulary.

    It runs in the target's precision, on its device and kernels. Raises UsageError: there is no such model,
    or the engine does not support it; EngineError: the files cannot be loaded, or the model does not compute
    faithfully.
    """
    kernels = None if target.decoder is None else target.decoder.kernels
    with _clear_faults(str(folder)):
        model = _load_model(str(folder), target.cache_shape.dtype, 0).to(target.cache_shape.device)
        drafter = TargetModel(model, target.tokenizer, kernels)
    return drafter.decoder, drafter.cache_shape, drafter.vocab_size


def _load_model(model_path: str, dtype: torch.dtype, max_model_len: int) -> Any:
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    _check_folder(model_path)
    check_supported(AutoConfig.from_pretrained(model_path), model_path, max_model_len)
    return AutoModelForCausalLM.from_pretrained(model_path, dtype=dtype, attn_implementation="sdpa")


@contextmanager
def _clear_faults(model_path: str) -> Iterator[None]:
    """Turn what the libraries raise over a model's files into one sentence."""
    try:
        yield
    except _LOADING_FAULTS as fault:
        raise EngineError(
            f"the model cannot be loaded: {_first_line(fault)}",
            place=model_path,
            fix="give a folder with config.json, weights and tokenizer, or a Hugging Face model id",
        ) from fault


def _check_folder(model_path: str) -> None:
    """A path that looks like a folder must be one; anything else may be a model id."""
    folder = Path(model_path)
    looks_local = folder.is_absolute() or model_path.startswith((".", "~")) or folder.exists()
    if looks_local and not (folder / "config.json").is_file():
        raise UsageError(
            "there is no model here: config.json is missing",
            place=model_path,
            fix="give a folder with config.json, weights and tokenizer, or a Hugging Face model id",
        )


def _collect_eos_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    generation = getattr(model, "generation_config", None)
    named = [getattr(source, "eos_token_id", None) for source in (generation, model.config, tokenizer)]
    ids: set[int] = set()
    for value in named:
        ids.update([] if value is None else value if isinstance(value, list) else [value])
    return frozenset(ids)


def _first_line(fault: Exception) -> str:
    lines = str(fault).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(fault).__name__
