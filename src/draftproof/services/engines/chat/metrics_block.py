"""The `metrics` block of an answer, and the margins of its two likeliest tokens from log-probabilities.

Field names are vLLM's where it has the quantity; `rounds` and `fallbacks` are the reference engine's.
Whatever cannot be read stays None and is named in a warning; identities that do not hold are named and the
values kept, because the reader must see what the server said. A margin is kept only where it surely belongs
to a token id.
"""

import math
from collections.abc import Sequence
from typing import Any

import msgspec

from draftproof.core.records import Round, ServerTimings, SpecCounts
from draftproof.judge.metrics.acceptance import bound_decode_steps
from draftproof.services.engines.chat.frames import Count, EngineBlocks, ms_to_ns


class MetricsReading(msgspec.Struct, frozen=True):
    """What a metrics block said; empty for an answer without one."""

    speculation: SpecCounts | None = None
    rounds: tuple[Round, ...] | None = None
    server: ServerTimings = ServerTimings()
    fallbacks: int | None = None
    warnings: tuple[str, ...] = ()
    decode_steps: int | None = None


class _Speculation(msgspec.Struct, frozen=True):
    num_spec_steps: Count
    num_draft_tokens: Count
    num_accepted_draft_tokens: Count
    acceptance_histogram: tuple[Count, ...] | None = None
    per_step_drafted: tuple[Count, ...] | None = None
    per_step_accepted: tuple[Count, ...] | None = None


_Rounds = msgspec.defstruct("_Rounds", [(name, tuple[int, ...]) for name in Round.__struct_fields__])


class _Block(msgspec.Struct, frozen=True):
    queue_time_ms: float | None = None
    time_to_first_token_ms: float | None = None
    prefill_time_ms: float | None = None
    generation_time_ms: float | None = None
    speculative_decoding: _Speculation | None = None
    rounds: _Rounds | None = None  # type: ignore[valid-type]
    fallbacks: int | None = None


def read_metrics(blocks: EngineBlocks) -> MetricsReading:
    """Return what the `metrics` block among an answer's blocks says."""
    return parse_metrics(blocks.metrics)


def parse_metrics(block: Any) -> MetricsReading:
    """Return what a decoded metrics block says."""
    if block is None:
        return MetricsReading()
    try:
        read = msgspec.convert(block, _Block)
    except msgspec.ValidationError as error:
        return MetricsReading(warnings=(f"the metrics block cannot be read: {error}",))
    rounds, warnings = _parse_rounds(read.rounds)
    # vLLM states in its place the time from first scheduling to first token.
    prefill_ms = read.time_to_first_token_ms if read.prefill_time_ms is None else read.prefill_time_ms
    return MetricsReading(
        speculation=_parse_counts(read.speculative_decoding),
        rounds=rounds,
        server=ServerTimings(
            queue_ns=ms_to_ns(read.queue_time_ms),
            prefill_ns=ms_to_ns(prefill_ms),
            decode_ns=ms_to_ns(read.generation_time_ms),
        ),
        fallbacks=read.fallbacks,
        warnings=warnings,
    )


def bound_reading(reading: MetricsReading, output_tokens: int | None) -> MetricsReading:
    """Return a reading without what cannot be the answer's: steps out of bounds, placeholder times."""
    steps, server, found = reading.decode_steps, reading.server, []
    if steps is not None and (fault := _find_step_fault(steps, reading.speculation, output_tokens)):
        steps, found = None, [fault]
    if server.prefill_ns == 0 or (server.decode_ns == 0 and output_tokens not in {0, 1}):
        server, found = ServerTimings(), [*found, "the server's times are 0 and are not used"]
    if not found:
        return reading
    warnings = (*reading.warnings, *found)
    return msgspec.structs.replace(reading, decode_steps=steps, server=server, warnings=warnings)


def _find_step_fault(steps: int, counts: SpecCounts | None, output_tokens: int | None) -> str | None:
    """Return why so many decode steps cannot be, None where they can."""
    if output_tokens is None:
        return None if steps >= 0 else f"{steps} decode steps are fewer than none"
    bounds = (0, output_tokens - 1) if counts is None else bound_decode_steps(output_tokens, counts)
    if bounds is None:
        return f"the counters of drafts cannot be those of an answer of {output_tokens} tokens"
    if bounds[0] <= steps <= bounds[1]:
        return None
    return f"{steps} decode steps are not the {bounds[0]} to {bounds[1]} that its tokens and acceptance allow"


def find_disagreements(reading: MetricsReading, output_tokens: int | None) -> tuple[str, ...]:
    """Return one sentence for each identity of metrics.md (Acceptance) that the block breaks."""
    found: list[str] = []
    if reading.speculation is not None:
        found += _check_counts(reading.speculation)
    if reading.rounds is not None:
        found += _check_rounds(reading.rounds, reading.speculation, output_tokens)
    return tuple(found)


def _parse_counts(block: _Speculation | None) -> SpecCounts | None:
    if block is None:
        return None
    stated: dict[str, Any] = msgspec.structs.asdict(block)
    return SpecCounts(**{name: value for name, value in stated.items() if value is not None})


def _parse_rounds(block: msgspec.Struct | None) -> tuple[tuple[Round, ...] | None, tuple[str, ...]]:
    if block is None:
        return None, ()
    columns = msgspec.structs.astuple(block)
    lengths = {len(column) for column in columns}
    if len(lengths) > 1:
        return None, (f"the lists of rounds differ in length: {sorted(lengths)}",)
    return tuple(Round(*row) for row in zip(*columns, strict=True)), ()


def _check_counts(counts: SpecCounts) -> list[str]:
    found = []
    histogram = counts.acceptance_histogram
    steps, accepted = sum(histogram), sum(index * count for index, count in enumerate(histogram))
    if histogram and steps != counts.num_spec_steps:
        found.append(
            f"the acceptance histogram holds {steps} steps, num_spec_steps says {counts.num_spec_steps}"
        )
    if histogram and accepted != counts.num_accepted_draft_tokens:
        found.append(
            f"the acceptance histogram holds {accepted} accepted tokens, "
            f"num_accepted_draft_tokens says {counts.num_accepted_draft_tokens}"
        )
    found += _check_steps(counts)
    if counts.num_accepted_draft_tokens > counts.num_draft_tokens:
        found.append(
            f"{counts.num_accepted_draft_tokens} draft tokens accepted of {counts.num_draft_tokens} drafted"
        )
    return found


def _check_steps(counts: SpecCounts) -> list[str]:
    drafted, accepted = counts.per_step_drafted, counts.per_step_accepted
    stated = (counts.num_spec_steps, counts.num_draft_tokens, counts.num_accepted_draft_tokens)
    if not drafted or not accepted or (len(drafted), sum(drafted), sum(accepted)) == stated:
        return []
    listed = f"{len(drafted)} steps with {sum(drafted)} drafted and {sum(accepted)} accepted tokens"
    return [f"the lists of steps hold {listed}, the counters say {stated[0]}, {stated[1]} and {stated[2]}"]


def _check_rounds(
    rounds: tuple[Round, ...], counts: SpecCounts | None, output_tokens: int | None
) -> list[str]:
    found = [
        f"round {index} commits {one.committed} tokens with {one.accepted} of {one.proposed} drafts accepted"
        for index, one in enumerate(rounds)
        if one.accepted > one.proposed or one.committed > one.accepted + 1
    ][:1]
    if counts is not None:
        found += _check_sums(rounds, counts)
    committed = sum(one.committed for one in rounds)
    # The answer's first token comes from the prefill and belongs to no round.
    if output_tokens is not None and output_tokens > 0 and committed != output_tokens - 1:
        found.append(f"rounds commit {committed} tokens after the first, usage says {output_tokens} in all")
    return found


def _check_sums(rounds: tuple[Round, ...], counts: SpecCounts) -> list[str]:
    sums = {
        "num_spec_steps": (sum(one.proposed > 0 for one in rounds), counts.num_spec_steps),
        "num_draft_tokens": (sum(one.proposed for one in rounds), counts.num_draft_tokens),
        "num_accepted_draft_tokens": (sum(one.accepted for one in rounds), counts.num_accepted_draft_tokens),
    }
    return [
        f"rounds add up to {summed} for {name}, the counter says {stated}"
        for name, (summed, stated) in sums.items()
        if summed != stated
    ]


# A log-probability so low is none: it stands for minus infinity or for a masked token (OpenAI and vLLM write
# -9999.0, llama.cpp float32's lowest value), while a model's logits lie within some hundred nats.
_LOWEST = -1000.0
# Both of two tokens cannot be likelier than one together; half precision rounds a sum of one by as much.
_MOST_PROBABILITY = 1.01
# Four decimals of a nat are finer than any rounding of a model, and keep a record small.
_DECIMALS = 4


class MarginFold:
    """Gathers the margins of one answer, aligned with its token ids."""

    def __init__(self) -> None:
        self._margins: list[float | None] = []

    def add(self, logprobs: Any, token_ids: Sequence[int] | None, ids_so_far: int) -> None:
        """Take the `logprobs` of one chunk of a choice.

        `token_ids`: those of this chunk; without them its margins belong to no token. `ids_so_far`: token ids
        of the answer, this chunk's included.
        """
        content = logprobs.get("content") if isinstance(logprobs, dict) else None
        if not token_ids or not isinstance(content, list) or len(content) != len(token_ids):
            return
        self._pad(ids_so_far - len(token_ids))
        self._margins.extend(_read_margin(entry) for entry in content)

    def finish(self, token_count: int) -> tuple[float | None, ...] | None:
        """Return one margin for each of `token_count` token ids in nats; None where none could be read."""
        if all(margin is None for margin in self._margins):
            return None
        self._pad(token_count)
        return tuple(self._margins[:token_count])

    def _pad(self, length: int) -> None:
        self._margins.extend([None] * (length - len(self._margins)))


def _read_margin(entry: Any) -> float | None:
    """Return the log-probability of the likeliest token less that of the next."""
    top = entry.get("top_logprobs") if isinstance(entry, dict) else None
    if not isinstance(top, list):
        return None
    values = sorted((value for one in top if (value := _read_logprob(one)) is not None), reverse=True)
    if len(values) < 2 or values[0] > 0 or values[1] <= _LOWEST:
        return None
    if math.exp(values[0]) + math.exp(values[1]) > _MOST_PROBABILITY:
        return None
    return round(values[0] - values[1], _DECIMALS)


def _read_logprob(entry: Any) -> float | None:
    value = entry.get("logprob") if isinstance(entry, dict) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)
