"""What one choice of a request has received so far, and the metrics block over one or several of them.

Pure: the caller passes the clock's readings. Counts follow metrics.md; a value that is not known is null.
"""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import msgspec

from draftproof.reference.types import (
    FinishReason,
    RoundOutput,
    RoundStats,
    SpeculationParams,
    TokenLogprobs,
)

_ROUND_FIELDS = (
    "proposed",
    "accepted",
    "committed",
    "draft_ns",
    "verify_ns",
    "sample_ns",
    "schedule_ns",
    "batch_size",
    "prefill_tokens",
)
_NOTHING = RoundOutput(
    token_ids=(), text="", finish_reason=None, round=None, queue_ns=0, prefill_ns=0, fallbacks=0
)


class Answer:
    """Accumulates the rounds of one choice.

    Args:
        prompt_token_ids: the prompt; empty in all choices of a request but the first, so that sums over
            choices count it once.
        speculation: what the choice was generated with.
        received_ns: when the request was complete, on the server's monotonic clock.
    """

    def __init__(
        self, prompt_token_ids: tuple[int, ...], speculation: SpeculationParams, received_ns: int
    ) -> None:
        self.prompt_token_ids, self.speculation = prompt_token_ids, speculation
        self.received_ns = received_ns
        self.first_ns: int | None = None
        self.last_ns: int | None = None
        self.token_ids: list[int] = []
        self.outputs: list[RoundOutput] = []

    def add(self, output: RoundOutput, now_ns: int) -> None:
        """Take in what a round delivered at `now_ns`."""
        if output.token_ids:
            self.first_ns = now_ns if self.first_ns is None else self.first_ns
            self.last_ns = now_ns
        self.token_ids += output.token_ids
        self.outputs.append(output)

    @property
    def last(self) -> RoundOutput | None:
        """The newest output."""
        return self.outputs[-1] if self.outputs else None

    @property
    def rounds(self) -> list[RoundStats]:
        """The decode rounds, the prefill not among them."""
        return [output.round for output in self.outputs if output.round is not None]

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why generation ended, None while it runs."""
        return self.last.finish_reason if self.last else None

    def joined(self) -> RoundOutput:
        """Return all outputs as one: its tokens, text and end."""
        return msgspec.structs.replace(
            self.last or _NOTHING,
            token_ids=tuple(self.token_ids),
            text="".join(output.text for output in self.outputs),
            logprobs=_joined_logprobs(self.outputs),
        )

    def time_per_output_token_s(self) -> float | None:
        """Return the mean time per token after the first delivery, None if there is none after it."""
        if self.first_ns is None or self.last_ns is None or len(self.token_ids) < 2:
            return None
        return (self.last_ns - self.first_ns) / 1e9 / (len(self.token_ids) - 1)


def metrics_block(answers: Sequence[Answer], *, rounds: bool) -> dict[str, Any]:
    """Return the metrics block of one choice, or of several pooled, at least one.

    Pooled, first and last token are those of any choice, queue and prefill are the longest, and steps,
    fallbacks and `rounds`, listed if asked for, are those of all choices, one after the other.
    """
    speculation, latest = answers[0].speculation, [answer.last for answer in answers if answer.last]
    first_ns = min((a.first_ns for a in answers if a.first_ns is not None), default=None)
    last_ns = max((a.last_ns for a in answers if a.last_ns is not None), default=None)
    steps = list(chain.from_iterable(answer.rounds for answer in answers))
    block: dict[str, Any] = {
        "time_to_first_token_ms": _difference_ms(answers[0].received_ns, first_ns),
        "queue_time_ms": max((output.queue_ns / 1e6 for output in latest), default=None),
        "prefill_time_ms": max((output.prefill_ns / 1e6 for output in latest), default=None),
        "generation_time_ms": _difference_ms(first_ns, last_ns),
        "speculative_decoding": compute_acceptance(steps, speculation),
        "fallbacks": sum(output.fallbacks for output in latest),
        "speculation": msgspec.structs.asdict(speculation) | describe_lengths(steps),
    }
    if rounds:
        block["rounds"] = {name: [getattr(step, name) for step in steps] for name in _ROUND_FIELDS}
    return block


def compute_acceptance(rounds: Sequence[RoundStats], speculation: SpeculationParams) -> dict[str, Any] | None:
    """Return acceptance over the steps that drafted (metrics.md), None where nothing may draft."""
    if speculation.method == "off":
        return None
    steps = [r for r in rounds if r.proposed]
    drafted, accepted = sum(r.proposed for r in steps), sum(r.accepted for r in steps)
    histogram = [0] * (speculation.num_spec_tokens + 1)
    for step in steps:
        histogram[step.accepted] += 1
    return {
        "mean_acceptance_length": 1 + accepted / len(steps) if steps else None,
        "draft_acceptance_rate": accepted / drafted if drafted else None,
        "acceptance_histogram": histogram,
        "num_spec_steps": len(steps),
        "num_accepted_draft_tokens": accepted,
        "num_draft_tokens": drafted,
        "num_spec_tokens": speculation.num_spec_tokens,
        "per_step_accepted": [r.accepted for r in steps],
        "per_step_drafted": [r.proposed for r in steps],
        "per_step_draft_ms": [r.draft_ns / 1e6 for r in steps],
        "per_step_verify_ms": [r.verify_ns / 1e6 for r in steps],
    }


def describe_lengths(rounds: Sequence[RoundStats]) -> dict[str, Any]:
    """Return what the draft-length policy decided, over the rounds in which the request could draft.

    `mean_draft_length` counts tokens drafted a round, None without such a round; `paused_rounds` the rounds
    in which the policy asked for none.
    """
    able = [r for r in rounds if r.draft_limit is not None]
    return {
        "mean_draft_length": sum(r.proposed for r in able) / len(able) if able else None,
        "paused_rounds": sum(1 for r in able if r.draft_limit == 0),
    }


def _joined_logprobs(outputs: Iterable[RoundOutput]) -> tuple[TokenLogprobs, ...] | None:
    """Return the log-probabilities of all tokens, None unless every token has one."""
    parts = [output.logprobs for output in outputs if output.token_ids]
    known = [part for part in parts if part is not None]
    return tuple(chain.from_iterable(known)) if len(known) == len(parts) else None


def _difference_ms(start_ns: int | None, end_ns: int | None) -> float | None:
    return None if start_ns is None or end_ns is None else (end_ns - start_ns) / 1e6
