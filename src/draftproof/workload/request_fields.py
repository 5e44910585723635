"""Fields of a request that a workload states: which become parts of an item, which are sent as they stand.

Pure. The rule: a field has a key of its own in an item, or goes out as given, or is left to the plan and
named in the workload's notes, or is refused by name. None is dropped in silence.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from draftproof.services.engines.commands import is_secret_name

# Field of a request -> where an item has it.
OWN_KEYS = {
    "messages": "messages",
    "max_tokens": "max_tokens",
    "max_completion_tokens": "max_tokens",
    "temperature": "sampling.temperature",
    "top_p": "sampling.top_p",
    "top_k": "sampling.top_k",
    "seed": "sampling.seed",
    "stop": "stop",
    "tools": "tools",
    "tool_choice": "tool_choice",
}
# Fields by which an answer changes, beside those above; where a form has no place for them they are refused.
FURTHER_KEYS = frozenset(
    {
        *("chat_template_kwargs", "frequency_penalty", "ignore_eos", "logit_bias", "logprobs", "min_p"),
        *("min_tokens", "n", "parallel_tool_calls", "presence_penalty", "repetition_penalty"),
        *("response_format", "stop_token_ids", "functions", "function_call", "top_logprobs", "modalities"),
        *("reasoning_effort", "verbosity", "prediction", "service_tier", "prompt_cache_key", "guided_json"),
    }
)
# Field -> what is sent in its place. What changes no answer an item may still state in `request`.
_ASKED_BY_PLAN = {
    "model": "the model that the plan names is asked",
    "stream": "every answer is streamed",
    "stream_options": "usage is asked for as the engine can state it",
}
_NO_PART = "it changes no answer; arms.NAME.request may state it"
LEFT_TO_PLAN = _ASKED_BY_PLAN | dict.fromkeys(("user", "safety_identifier", "metadata", "store"), _NO_PART)
_BY_THE_ARMS = "the arms of the plan decide it"
_OTHER_LIMITS = ("max_new_tokens", "max_output_tokens", "n_predict")
# Field -> the values that do no harm, and why others are refused.
_REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "n": ((1,), "of several answers none has a time per token of its own"),
    "best_of": ((1,), "of several answers none has a time per token of its own"),
    "use_beam_search": ((False,), "of several beams none has a time per token of its own"),
    "echo": ((False,), "an answer that begins with its prompt is measured with it"),
    "prompt": ((), "a chat request has messages"),
    "input": ((), "a chat request has messages"),
    **dict.fromkeys(_OTHER_LIMITS, ((), "two limits leave it open which one holds; state it as max_tokens")),
}
# What tells a line that is the body of a chat request.
PROTOCOL_KEYS = OWN_KEYS.keys() | FURTHER_KEYS | LEFT_TO_PLAN.keys() | _REFUSED.keys()


def find_request_faults(request: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with the further fields of a request."""
    for name, value in request.items():
        if name in OWN_KEYS:
            yield f"request.{name}: state it as {OWN_KEYS[name]}"
        elif name in _ASKED_BY_PLAN:
            yield f"request.{name}: {_ASKED_BY_PLAN[name]}"
        elif is_secret_name(name):
            yield f"request.{name} would be copied into every run; send a secret as a header of the arm"
        elif "speculat" in name:
            yield f"request.{name} cannot be stated by an item: {_BY_THE_ARMS}"
        elif name in _REFUSED and value not in _REFUSED[name][0]:
            yield f"request.{name} = {_shorten(value)} cannot be measured: {_REFUSED[name][1]}"


def split_request(body: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the fields of a body that go out as given, and the names of those that are left to the plan."""
    given = {key: value for key, value in body.items() if key not in OWN_KEYS and key not in LEFT_TO_PLAN}
    return given, tuple(key for key in LEFT_TO_PLAN if key in body)


def _shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
