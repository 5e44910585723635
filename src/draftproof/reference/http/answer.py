"""What a request of one or more choices is answered with, in the OpenAI form: chunks, bodies, usage, metrics.

Pure: the caller passes the clock's readings. Counts follow metrics.md; a value that is not known is null.
Usage counts the prompt once and the tokens of every choice. One writer makes the pieces of a stream, or the
whole choice of a body from all rounds as one.
"""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import msgspec

from draftproof.core.clock import NS_PER_S
from draftproof.core.records import Round
from draftproof.reference.http.token_text import LogprobsWriter, TokenTexts
from draftproof.reference.http.tools import CallText
from draftproof.reference.http.wire import Wanted
from draftproof.reference.types import (
    FinishReason,
    RoundOutput,
    RoundStats,
    SpeculationParams,
)

_NOTHING = RoundOutput(
    token_ids=(), text="", finish_reason=None, round=None, queue_ns=0, prefill_ns=0, fallbacks=0
)


class Answer:
    """Accumulates the rounds of one choice.

    `prompt_token_ids`: the prompt; empty in all choices of a request but the first, so that sums over choices
    count it once. `speculation`: what the choice was generated with. `received_ns`: when the request was
    complete, on the server's monotonic clock.
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
        """Return all outputs as one: its tokens, text and end; log-probabilities if every token has one."""
        parts = [output.logprobs for output in self.outputs if output.token_ids]
        known = [part for part in parts if part is not None]
        return msgspec.structs.replace(
            self.last or _NOTHING,
            token_ids=tuple(self.token_ids),
            text="".join(output.text for output in self.outputs),
            logprobs=tuple(chain.from_iterable(known)) if len(known) == len(parts) else None,
        )

    def time_per_output_token_s(self) -> float | None:
        """Return the mean time per token after the first delivery, None if there is none after it."""
        if self.first_ns is None or self.last_ns is None or len(self.token_ids) < 2:
            return None
        return (self.last_ns - self.first_ns) / NS_PER_S / (len(self.token_ids) - 1)


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
        block["rounds"] = {name: [getattr(step, name) for step in steps] for name in Round.__struct_fields__}
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


def _difference_ms(start_ns: int | None, end_ns: int | None) -> float | None:
    return None if start_ns is None or end_ns is None else (end_ns - start_ns) / 1e6


class ChoiceWriter:
    """Writes one choice.

    `index`: which choice of the request it is. `chat`: chat form or plain completion form. `call_id`: the id
    of the tool call, where one is forced.
    """

    def __init__(self, index: int, wanted: Wanted, texts: TokenTexts, *, chat: bool, call_id: str) -> None:
        self._index, self._wanted, self._chat, self._call_id = index, wanted, chat, call_id
        self._logprobs = LogprobsWriter(texts, chat=chat)
        self._call = CallText() if wanted.forced_call else None

    def opening(self) -> dict[str, Any]:
        """Return the role of a chat stream; it carries no generated token."""
        delta = {"role": "assistant", "content": ""}
        return {"index": self._index, "delta": delta, "logprobs": None, "finish_reason": None}

    def piece(self, output: RoundOutput) -> dict[str, Any]:
        """Return what a round adds to the choice."""
        return self._choice({"delta": self._delta(output)} if self._chat else {"text": output.text}, output)

    def whole(self, output: RoundOutput) -> dict[str, Any]:
        """Return the complete choice; `output` holds all rounds."""
        if not self._chat:
            return self._choice({"text": output.text}, output)
        message: dict[str, Any] = {"role": "assistant", "content": None} | self._delta(output)
        for call in message.get("tool_calls", ()):
            del call["index"]
        return self._choice({"message": message}, output)

    def _choice(self, shown: dict[str, Any], output: RoundOutput) -> dict[str, Any]:
        asked = self._wanted.sampling.logprobs is not None
        known = () if output.logprobs is None and not output.token_ids else output.logprobs
        is_call = self._call is not None and self._call.complete and output.finish_reason == "stop"
        choice: dict[str, Any] = {
            "index": self._index,
            **shown,
            "logprobs": None if not asked or known is None else self._logprobs.write(known),
            "finish_reason": "tool_calls" if is_call else output.finish_reason,
        }
        if self._wanted.return_token_ids:
            choice["token_ids"] = list(output.token_ids)
        return choice

    def _delta(self, output: RoundOutput) -> dict[str, Any]:
        return {"content": output.text} if self._call is None else self._call_delta(self._call, output)

    def _call_delta(self, call: CallText, output: RoundOutput) -> dict[str, Any]:
        """Return the next part of the call; a text that ends without becoming one is shown as it is."""
        began = call.name is None
        arguments = call.push(output.text)
        if call.name is None:
            return {"content": call.flush()} if output.finish_reason is not None else {}
        part: dict[str, Any] = {"index": 0, "function": {"arguments": arguments}}
        if began:
            named = {"name": call.name, "arguments": arguments}
            part |= {"id": self._call_id, "type": "function", "function": named}
        return {"tool_calls": [part]} if began or arguments else {}


class Answers:
    """The answers of one request, in the OpenAI form.

    `created_s`: seconds since the epoch. `prompt_token_ids`: the prompt, shared by all choices. `wanted`:
    what the request asked for, the number of choices among it. `received_ns`: when the request was complete,
    on the server's monotonic clock. `chat`: chat form (messages and deltas) or plain completion form (texts).
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
        texts: TokenTexts,
    ) -> None:
        self.request_id, self.wanted, self.chat = request_id, wanted, chat
        self._prompt_token_ids = prompt_token_ids
        kind, chunk_kind = ("chat.completion", ".chunk") if chat else ("text_completion", "")
        self._head = {"id": request_id, "object": kind, "created": created_s, "model": model}
        self._chunk_head = self._head | {"object": kind + chunk_kind}
        self.each = [
            Answer(() if index else prompt_token_ids, wanted.speculation, received_ns)
            for index in range(wanted.n)
        ]
        self._writers = [
            ChoiceWriter(index, wanted, texts, chat=chat, call_id=f"call_{request_id}_{index}")
            for index in range(wanted.n)
        ]

    def add(self, index: int, output: RoundOutput, now_ns: int) -> None:
        """Take in what a round delivered to a choice at `now_ns`."""
        self.each[index].add(output, now_ns)

    def usage(self) -> dict[str, int]:
        """Return the tokens counted so far; only delivered tokens count."""
        prompt = len(self._prompt_token_ids)
        completion = sum(len(answer.token_ids) for answer in self.each)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
        }

    def metrics(self) -> dict[str, Any]:
        """Return the metrics block; of several choices the pooled one and, in `choices`, that of each."""
        rounds = self.wanted.return_round_metrics
        block = metrics_block(self.each, rounds=rounds)
        if len(self.each) > 1:
            block["choices"] = [metrics_block([answer], rounds=rounds) for answer in self.each]
        return block

    def opening_chunks(self) -> Iterable[dict[str, Any]]:
        """Yield the role chunks of a chat stream, one a choice; the first states the prompt if asked for."""
        for index, writer in enumerate(self._writers):
            chunk = self._chunk(writer.opening())
            if self.wanted.return_token_ids and index == 0:
                chunk["prompt_token_ids"] = list(self._prompt_token_ids)
            yield chunk

    def round_chunk(self, index: int, output: RoundOutput) -> dict[str, Any]:
        """Return the one event of a round: text and new token ids and, at the end, the finish reason."""
        return self._chunk(self._writers[index].piece(output))

    def usage_chunk(self) -> dict[str, Any]:
        """Return the closing chunk: no choices, the whole usage, the metrics block."""
        return self._chunk_head | {"choices": [], "usage": self.usage(), "metrics": self.metrics()}

    def body(self) -> dict[str, Any]:
        """Return the whole answer for a request that does not stream."""
        pairs = zip(self._writers, self.each, strict=True)
        choices = [writer.whole(answer.joined()) for writer, answer in pairs]
        body = self._head | {"choices": choices, "usage": self.usage(), "metrics": self.metrics()}
        if self.wanted.return_token_ids:
            body["prompt_token_ids"] = list(self._prompt_token_ids)
        return body

    def _chunk(self, choice: dict[str, Any]) -> dict[str, Any]:
        chunk = self._chunk_head | {"choices": [choice]}
        if self.wanted.continuous_usage:
            chunk["usage"] = self.usage()
        return chunk
