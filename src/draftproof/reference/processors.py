"""What a request asks to be changed in the model's logits before a token is drawn. Pure.

The order is that of vLLM's sampler (vLLM documentation, `vllm.v1.sample.sampler.Sampler`): masks (grammar,
`min_tokens`), `logit_bias`, repetition, frequency and presence penalties; then temperature,
`min_p`, top-k and top-p. Row j of a round is processed as ordinary decoding would process it after the
committed tokens and the first j drafts. llguidance turns a JSON schema into a grammar over the bytes of the
model's tokens.

From logits to probabilities to a token: pure tensor functions, no hidden random source.

Probabilities are float64, so that acceptance ratios and residuals carry no rounding that matters. Random
numbers come in as arguments, from a generator that belongs to one sequence. Log-probabilities of delivered
tokens are log-softmax of the raw logits, vLLM's `raw_logprobs` (vLLM documentation, `logprobs_mode`): what
the model thought, not how probable the draw was.
"""

import functools
import math
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import llguidance
import llguidance.hf
import msgspec
import numpy as np
import torch

from draftproof.core.errors import UsageError
from draftproof.reference.types import SamplingParams, TokenLogprobs


def changes_logits(sampling: SamplingParams) -> bool:
    """Return whether `process_logits` could do anything for such a request."""
    return (
        _penalizes(sampling)
        or bool(sampling.logit_bias)
        or sampling.min_tokens > 0
        or sampling.json_schema is not None
    )


def process_logits(
    logits: torch.Tensor,
    sampling: SamplingParams,
    *,
    prompt_ids: Sequence[int],
    output_ids: Sequence[int],
    draft_ids: Sequence[int],
    end_ids: AbstractSet[int],
    allowed: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the logits of one round as the request wants them.

    Args:
        logits: [drafts + 1, vocab] as the model gave them, any floating type; left as they are.
        sampling: what the request asks for.
        prompt_ids: [prompt].
        output_ids: [output], committed tokens after it.
        draft_ids: [drafts].
        end_ids: tokens that `min_tokens` holds back: end of sequence and the request's stop tokens.
        allowed: [drafts + 1, vocab] bool, what the request's grammar allows in each row; None allows all.

    Returns:
        [drafts + 1, vocab] float64; minus infinity marks a token that cannot be drawn.
    """
    processed = logits.to(torch.float64, copy=True)
    add_bias(processed, sampling.logit_bias)
    if _penalizes(sampling):
        penalize(processed, sampling, prompt_ids, output_ids, draft_ids)
    if allowed is not None:
        processed = forbid(processed, ~allowed.to(processed.device))
    held_back = sampling.min_tokens - len(output_ids)  # rows from the first on
    return forbid_ends(processed, end_ids, held_back) if held_back > 0 else processed


def _penalizes(sampling: SamplingParams) -> bool:
    penalties = (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty)
    return penalties != (1.0, 0.0, 0.0)


def add_bias(logits: torch.Tensor, logit_bias: Sequence[tuple[int, float]]) -> None:
    """Add each bias to its token's logit in every row, in place.

    OpenAI API reference, `logit_bias`: the bias is added to the logits of the model prior to sampling.
    """
    for token_id, bias in logit_bias:
        logits[:, token_id] += bias


def penalize(
    logits: torch.Tensor,
    sampling: SamplingParams,
    prompt_ids: Sequence[int],
    output_ids: Sequence[int],
    draft_ids: Sequence[int],
) -> None:
    """Apply the three penalties to [drafts + 1, vocab] logits in place, each row by the tokens before it.

    OpenAI API reference and vLLM's `SamplingParams`: the logit of a token that stands n times in the output
    falls by n times `frequency_penalty`, and by `presence_penalty` if n is not 0; the prompt counts for
    neither. Only tokens that occur are touched, a small part of the vocabulary.
    """
    in_prompt = set(prompt_ids) if sampling.repetition_penalty != 1.0 else set()
    occurring = sorted(in_prompt.union(output_ids, draft_ids))
    column_of = {token_id: column for column, token_id in enumerate(occurring)}
    columns = _as_ids(occurring, logits)
    part = logits[:, columns]  # [drafts + 1, occurring]
    counts = count_tokens([column_of[one] for one in output_ids], [column_of[one] for one in draft_ids], part)
    seen = counts > 0
    seen[:, _as_ids([column_of[one] for one in in_prompt], logits)] = True
    part = penalize_repetition(part, seen, sampling.repetition_penalty)
    part -= sampling.frequency_penalty * counts + sampling.presence_penalty * counts.clamp_max(1.0)
    logits[:, columns] = part


def count_tokens(output: Sequence[int], drafts: Sequence[int], like: torch.Tensor) -> torch.Tensor:
    """Return how often each column's token stands in the output before each row: [drafts + 1, columns].

    `output`: the column of each committed token of the output. `like`: a tensor of the shape and type to
    return.
    """
    counts = torch.zeros_like(like)
    counts += torch.bincount(_as_ids(output, like), minlength=like.shape[-1])
    for depth, column in enumerate(drafts, start=1):
        counts[depth:, column] += 1
    return counts


def penalize_repetition(logits: torch.Tensor, seen: torch.Tensor, penalty: float) -> torch.Tensor:
    """Return logits with those of `seen` tokens divided by the penalty if positive, else multiplied.

    Keskar et al. 2019 (CTRL, section 4.1) in the form of transformers' RepetitionPenaltyLogitsProcessor and
    of vLLM: a token counts as seen if it stands in the prompt or in the output. `logits`: [rows, columns].
    `seen`: [rows, columns] bool. `penalty`: above 1 discourages, below 1 encourages.
    """
    penalized = torch.where(logits > 0, logits / penalty, logits * penalty)
    return torch.where(seen, penalized, logits)


def forbid_ends(logits: torch.Tensor, end_ids: AbstractSet[int], num_rows: int) -> torch.Tensor:
    """Return logits whose first `num_rows` rows cannot draw an end token.

    vLLM documentation, `SamplingParams.min_tokens`: so many tokens come before end of sequence or
    `stop_token_ids` can be drawn. Stop strings are not held back.
    """
    forbidden = torch.zeros_like(logits, dtype=torch.bool)
    forbidden[:num_rows, _as_ids(sorted(end_ids), logits)] = True
    return forbid(logits, forbidden)


def forbid(logits: torch.Tensor, forbidden: torch.Tensor) -> torch.Tensor:
    """Return logits with `forbidden` [rows, vocab] ones at minus infinity.

    A row in which nothing would be left stays as it is: a grammar that is complete allows the end alone, and
    then `min_tokens` yields to it.
    """
    left = logits.masked_fill(forbidden, -torch.inf)
    is_empty = left.amax(dim=-1, keepdim=True) == -torch.inf
    return torch.where(is_empty, logits, left)


def _as_ids(token_ids: Sequence[int], like: torch.Tensor) -> torch.Tensor:
    return torch.tensor([*token_ids], dtype=torch.long, device=like.device)


_KEPT_SCHEMAS = 64
# Between two elements of the JSON text. Without a bound, a model that falls into a loop of spaces never ends;
# this one leaves room for the indentation of deeply nested text.
_WHITESPACE = r"[ \n\r\t]{0,20}"
_QUIET = 0  # what is wrong with a schema goes to the caller, not to standard error


class Constraint:
    """Where one sequence's output stands in its grammar.

    `matcher`: at the grammar's start; it belongs to this object. `eos_ids`: end tokens; once the grammar is
    complete they may follow without end.
    """

    def __init__(self, matcher: llguidance.LLMatcher, *, vocab_size: int, eos_ids: AbstractSet[int]) -> None:
        self._matcher = matcher
        self._vocab_size, self._eos_ids = vocab_size, eos_ids
        self.failure: str | None = None

    def allowed(self, draft_ids: Sequence[int]) -> torch.Tensor:
        """Return what may follow the committed tokens and the first drafts: [drafts + 1, vocab] bool.

        Rows behind a forbidden draft are never used and allow everything. The position stays as it is.
        """
        rows = torch.ones(len(draft_ids) + 1, self._vocab_size, dtype=torch.bool)
        rows[0] = self._mask()
        consumed = 0
        for depth, token_id in enumerate(draft_ids, start=1):
            taken = self._matcher.try_consume_tokens([token_id])
            if not taken and not self._is_surplus_end(token_id):
                break
            consumed += taken
            rows[depth] = self._mask()
        self._matcher.rollback(consumed)
        return rows

    def commit(self, token_id: int) -> None:
        """Move on by a delivered token; `failure` says afterwards if the grammar could not follow."""
        if not self._matcher.try_consume_tokens([token_id]) and not self._is_surplus_end(token_id):
            self.failure = "the output left its json_schema"
        if self._matcher.is_error():
            self.failure = f"json_schema cannot be followed further: {_first_line(self._matcher.get_error())}"

    def _is_surplus_end(self, token_id: int) -> bool:
        return token_id in self._eos_ids and self._matcher.is_stopped()

    def _mask(self) -> torch.Tensor:
        """Return [vocab] bool; ids that the tokenizer does not have are never allowed."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        return torch.from_numpy(np.unpackbits(bits, count=self._vocab_size, bitorder="little")).bool()


class Grammars:
    """Compiles schemas for one model and keeps those used last.

    `tokenizer`: the model's, as transformers loads it. `vocab_size`: of the model's logits; it may exceed the
    tokenizer's.
    """

    def __init__(self, tokenizer: Any, *, vocab_size: int, eos_ids: AbstractSet[int]) -> None:
        self._tokenizer = tokenizer
        self._vocab_size, self._eos_ids = vocab_size, eos_ids
        self._compile = functools.lru_cache(maxsize=_KEPT_SCHEMAS)(self._compile_anew)

    def check(self, json_schema: str) -> None:
        """Raise UsageError, naming json_schema, unless outputs can be held to the schema."""
        self._compile(json_schema)

    def start(self, json_schema: str) -> Constraint:
        """Return the constraint of an output that has not begun. Raises UsageError: as `check`."""
        matcher = self._compile(json_schema).deep_copy()
        return Constraint(matcher, vocab_size=self._vocab_size, eos_ids=self._eos_ids)

    def _compile_anew(self, json_schema: str) -> llguidance.LLMatcher:
        grammar = llguidance.LLMatcher.grammar_from_json_schema(
            _parse(json_schema), defaults={"whitespace_pattern": _WHITESPACE}
        )
        matcher = llguidance.LLMatcher(self._bridge, grammar, log_level=_QUIET)
        first = matcher.deep_copy()
        if not matcher.is_error():
            first.compute_bitmask()  # a schema that nothing satisfies compiles, and has no first token
        if first.is_error():
            raise UsageError(
                f"the schema cannot be compiled or satisfied: {_first_line(first.get_error())}",
                place="json_schema",
                fix="send a JSON schema that can be satisfied, of keywords that llguidance supports",
            )
        return matcher

    @functools.cached_property
    def _bridge(self) -> llguidance.LLTokenizer:
        """The tokenizer as llguidance reads it: the bytes of every token. Built once, about a second."""
        try:
            if not self._eos_ids:
                raise ValueError("the model has no end-of-sequence token")  # noqa: TRY301 - one way to refuse
            return llguidance.hf.from_tokenizer(
                self._tokenizer, n_vocab=self._vocab_size, eos_token=sorted(self._eos_ids)
            )
        except (ValueError, RuntimeError) as fault:
            raise UsageError(
                f"this model's output cannot be held to a schema: {_first_line(str(fault))}",
                place="json_schema",
                fix="leave json_schema out, or serve a model with a fast tokenizer that has an end token",
            ) from fault


def _parse(json_schema: str) -> dict[str, Any]:
    """Return the schema; text is never pasted into a grammar, where it could be more than a schema."""
    try:
        schema = msgspec.json.decode(json_schema, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as fault:
        raise UsageError(
            f"the schema is no JSON object: {_first_line(str(fault))}",
            place="json_schema",
            fix='send a JSON schema such as {"type": "object"}',
        ) from fault
    return schema


def _first_line(message: str) -> str:
    return (message.strip().splitlines() or ["no reason given"])[0].rstrip(".:")


_TOP_P_FIRST_LOOK = 256  # most truncations end within the likeliest few hundred tokens


def compute_probs(logits: torch.Tensor, sampling: SamplingParams) -> torch.Tensor:
    """Return the distribution each row of logits stands for under a request's sampling.

    Temperature first, then min-p, then top-k, then top-p on what these left, renormalised: the order of
    vLLM's sampler. A tie at the edge of a truncation is kept whole, so the result never depends on the order
    of the vocabulary.

    Args:
        logits: [rows, vocab], any floating type; a token at minus infinity gets no mass.
        sampling: temperature 0 gives the one-hot row of the first largest logit.

    Returns:
        [rows, vocab] float64, each row sums to 1.
    """
    if sampling.temperature == 0.0:
        return one_hot(logits.argmax(dim=-1), logits.shape[-1])
    shifted = logits.double()
    shifted = shifted - shifted.amax(dim=-1, keepdim=True)  # so that no temperature, however small, overflows
    scaled = shifted / sampling.temperature
    likely = truncate_min_p(scaled, sampling.min_p)
    probs = torch.softmax(truncate_top_k(likely, sampling.top_k), dim=-1)
    return truncate_top_p(probs, sampling.top_p)


def one_hot(token_ids: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Return [rows, vocab] float64 with all mass on `token_ids` [rows]."""
    rows = torch.zeros(len(token_ids), vocab_size, dtype=torch.float64, device=token_ids.device)
    return rows.scatter_(1, token_ids[:, None], 1.0)


def truncate_min_p(logits: torch.Tensor, min_p: float) -> torch.Tensor:
    """Drop every token less probable than `min_p` times its row's likeliest; 0 keeps all.

    Nguyen et al. 2024 (Turning Up the Heat: Min-p Sampling for Creative and Coherent LLM Outputs, section 3).
    `logits`: [rows, vocab], temperature applied. `min_p`: within 0 and 1.
    """
    if min_p == 0.0:
        return logits
    threshold = logits.amax(dim=-1, keepdim=True) + math.log(min_p)  # [rows, 1]
    return logits.masked_fill(logits < threshold, -torch.inf)


def truncate_top_k(logits: torch.Tensor, top_k: int) -> torch.Tensor:
    """Set every logit below the k-th largest of its row to minus infinity; `top_k` 0 keeps all."""
    if top_k == 0 or top_k >= logits.shape[-1]:
        return logits
    threshold = logits.topk(top_k, dim=-1).values[:, -1:]  # [rows, 1]
    return logits.masked_fill(logits < threshold, -torch.inf)


def truncate_top_p(probs: torch.Tensor, top_p: float) -> torch.Tensor:
    """Keep the fewest likeliest tokens whose mass reaches `top_p`, and renormalise; 1 keeps all."""
    if top_p >= 1.0:
        return probs
    first_look = probs.topk(min(_TOP_P_FIRST_LOOK, probs.shape[-1]), dim=-1).values
    if bool((first_look.sum(-1) < top_p).any()):
        first_look = probs.sort(dim=-1, descending=True).values
    mass_before = first_look.cumsum(-1) - first_look  # [rows, looked at]
    kept = (mass_before < top_p).sum(-1, keepdim=True).clamp_min(1)
    threshold = first_look.gather(-1, kept - 1)
    left = probs.masked_fill(probs < threshold, 0.0)
    return left / left.sum(-1, keepdim=True)


def draw_uniforms(generator: torch.Generator, count: int) -> torch.Tensor:
    """Return `count` float64 numbers in [0, 1) from one sequence's own generator."""
    return torch.rand(count, dtype=torch.float64, generator=generator)


def draw(probs: torch.Tensor, uniform: float) -> int:
    """Return the token at which the cumulative mass of `probs` [vocab], a distribution, passes `uniform`.

    A token of probability zero is never returned.
    """
    mass = probs.double().cumsum(-1)
    token_id = int(torch.searchsorted(mass, uniform, right=True))
    last_possible = int(torch.searchsorted(mass, mass[-1]))  # rounding may end the mass just below 1
    return min(token_id, last_possible)


def token_logprobs(logits: torch.Tensor, token_ids: Sequence[int], num_top: int) -> tuple[TokenLogprobs, ...]:
    """Return the log-probability of each token and of the likeliest at its place, natural logarithm.

    `logits`: [tokens, vocab] raw; row i decided token i. `token_ids`: [tokens]. `num_top`: how many of the
    likeliest to list, cut to the vocabulary; 0 lists none.
    """
    logprobs = torch.log_softmax(logits.double(), dim=-1)  # [tokens, vocab]
    likeliest = logprobs.topk(min(num_top, logprobs.shape[-1]), dim=-1)
    return tuple(
        TokenLogprobs(
            token_id=token_id,
            logprob=float(row[token_id]),
            top=tuple(zip(top_ids, top_values, strict=True)),
        )
        for token_id, row, top_ids, top_values in zip(
            token_ids, logprobs, likeliest.indices.tolist(), likeliest.values.tolist(), strict=True
        )
    )
