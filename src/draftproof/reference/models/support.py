"""Which models the engine takes, decided from their configuration before any weight is read.

What is refused cannot run here, or would run and be wrong: attention that looks back less far than the
engine's cache, state that is not a cache of keys and values, arithmetic in which a row depends on the rows
beside it. Whatever passes is still compared with the model's own logits when it is loaded.
"""

from typing import Any

from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

from draftproof.errors import UsageError

_EXPERT_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_LENGTH_DEPENDENT_ROPE = frozenset({"dynamic", "longrope"})


def check_supported(model_config: Any, model_path: str, max_model_len: int) -> None:
    """Raise UsageError, naming what is unsupported, unless the engine takes this model at this length.

    Args:
        model_config: the model's configuration as transformers reads it.
        model_path: where it comes from, for messages.
        max_model_len: longest sequence wanted, tokens.
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
