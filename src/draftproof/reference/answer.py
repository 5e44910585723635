"""What a request has received so far, and its OpenAI-form bodies, chunks and metrics block.

Pure: the caller passes the clock's readings. Counts follow metrics.md; a value that is not known is null.
"""

from collections.abc import Sequence
from typing import Any

from draftproof.reference.types import FinishReason, RoundOutput, RoundStats, SpeculationParams
from draftproof.reference.wire import Wanted

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


class Answer:
    """Accumulates the rounds of one request.

    Args:
        request_id: the id the client sees.
        model: the served model's name.
        created_s: seconds since the epoch.
        prompt_token_ids: the prompt.
        wanted: what the request asked for.
        received_ns: when the request was complete, on the server's monotonic clock.
        chat: chat form (messages and deltas) or plain completion form (texts).
    """

    def __init__(
        self,
        *,
        request_id: str,
        model: str,
        created_s: int,
        prompt_token_ids: tuple[int, ...],
        wanted: Wanted,
        received_ns: int,
        chat: bool,
    ) -> None:
        self.request_id, self.model, self.created_s = request_id, model, created_s
        self.prompt_token_ids, self.wanted, self.chat = prompt_token_ids, wanted, chat
        self.received_ns = received_ns
        self.first_ns: int | None = None
        self.last_ns: int | None = None
        self.token_ids: list[int] = []
        self.texts: list[str] = []
        self.rounds: list[RoundStats] = []
        self.last: RoundOutput | None = None

    def add(self, output: RoundOutput, now_ns: int) -> None:
        """Take in what a round delivered at `now_ns`."""
        if output.token_ids:
            self.first_ns = now_ns if self.first_ns is None else self.first_ns
            self.last_ns = now_ns
        self.token_ids += output.token_ids
        self.texts.append(output.text)
        if output.round is not None:
            self.rounds.append(output.round)
        self.last = output

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why generation ended, None while it runs."""
        return self.last.finish_reason if self.last else None

    def usage(self) -> dict[str, int]:
        """Return the tokens counted so far; only delivered tokens count."""
        prompt, completion = len(self.prompt_token_ids), len(self.token_ids)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
        }

    def opening_chunk(self) -> dict[str, Any]:
        """Return the role chunk of a chat stream; it carries no generated token."""
        delta = {"role": "assistant", "content": ""}
        chunk = self._chunk([{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}])
        if self.wanted.return_token_ids:
            chunk["prompt_token_ids"] = list(self.prompt_token_ids)
        return chunk

    def round_chunk(self, output: RoundOutput) -> dict[str, Any]:
        """Return the one event of a round, its text and new token ids and, at the end, the finish reason."""
        shown = {"delta": {"content": output.text}} if self.chat else {"text": output.text}
        choice: dict[str, Any] = {
            "index": 0,
            **shown,
            "logprobs": None,
            "finish_reason": output.finish_reason,
        }
        if self.wanted.return_token_ids:
            choice["token_ids"] = list(output.token_ids)
        return self._chunk([choice])

    def usage_chunk(self) -> dict[str, Any]:
        """Return the closing chunk: no choices, the whole usage, the metrics block."""
        return self._skeleton(chunk=True) | {"choices": [], "usage": self.usage(), "metrics": self.metrics()}

    def body(self) -> dict[str, Any]:
        """Return the whole answer for a request that does not stream."""
        text = "".join(self.texts)
        shown = {"message": {"role": "assistant", "content": text}} if self.chat else {"text": text}
        choice: dict[str, Any] = {"index": 0, **shown, "logprobs": None, "finish_reason": self.finish_reason}
        body = self._skeleton(chunk=False) | {
            "choices": [choice],
            "usage": self.usage(),
            "metrics": self.metrics(),
        }
        if self.wanted.return_token_ids:
            choice["token_ids"] = list(self.token_ids)
            body["prompt_token_ids"] = list(self.prompt_token_ids)
        return body

    def metrics(self) -> dict[str, Any]:
        """Return the metrics block: server-side times, acceptance, fallbacks, and rounds where asked for."""
        block: dict[str, Any] = {
            "time_to_first_token_ms": _difference_ms(self.received_ns, self.first_ns),
            "queue_time_ms": self.last.queue_ns / 1e6 if self.last else None,
            "prefill_time_ms": self.last.prefill_ns / 1e6 if self.last else None,
            "generation_time_ms": _difference_ms(self.first_ns, self.last_ns),
            "speculative_decoding": compute_acceptance(self.rounds, self.wanted.speculation),
            "fallbacks": self.last.fallbacks if self.last else 0,
            "speculation": {
                "method": self.wanted.speculation.method,
                "num_spec_tokens": self.wanted.speculation.num_spec_tokens,
                "policy": "fixed",
            },
        }
        if self.wanted.return_round_metrics:
            block["rounds"] = {name: [getattr(r, name) for r in self.rounds] for name in _ROUND_FIELDS}
        return block

    def time_per_output_token_s(self) -> float | None:
        """Return the mean time per token after the first delivery, None if there is none after it."""
        if self.first_ns is None or self.last_ns is None or len(self.token_ids) < 2:
            return None
        return (self.last_ns - self.first_ns) / 1e9 / (len(self.token_ids) - 1)

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        chunk = self._skeleton(chunk=True) | {"choices": choices}
        if self.wanted.continuous_usage:
            chunk["usage"] = self.usage()
        return chunk

    def _skeleton(self, *, chunk: bool) -> dict[str, Any]:
        kind = ("chat.completion.chunk" if chunk else "chat.completion") if self.chat else "text_completion"
        return {"id": self.request_id, "object": kind, "created": self.created_s, "model": self.model}


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


def _difference_ms(start_ns: int | None, end_ns: int | None) -> float | None:
    return None if start_ns is None or end_ns is None else (end_ns - start_ns) / 1e6
