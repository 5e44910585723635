"""Output that must satisfy a JSON schema: which tokens may come next, after each draft of a round.

llguidance turns a schema into a grammar over the bytes of the model's tokens. A drafted token that the
grammar forbids has probability zero and is rejected; where the grammar is complete and cannot go on, only an
end token is left.
"""

import functools
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import llguidance
import llguidance.hf
import msgspec
import numpy as np
import torch

from draftproof.errors import UsageError

_KEPT_SCHEMAS = 64
# Between two elements of the JSON text. Without a bound, a model that falls into a loop of spaces never ends;
# this one leaves room for the indentation of deeply nested text.
_WHITESPACE = r"[ \n\r\t]{0,20}"
_QUIET = 0  # what is wrong with a schema goes to the caller, not to standard error


class Constraint:
    """Where one sequence's output stands in its grammar.

    Args:
        matcher: at the grammar's start; it belongs to this object.
        vocab_size: of the model's logits.
        eos_ids: end tokens; once the grammar is complete they may follow without end.
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

    Args:
        tokenizer: the model's, as transformers loads it.
        vocab_size: of the model's logits; it may exceed the tokenizer's.
        eos_ids: tokens that end an output.
    """

    def __init__(self, tokenizer: Any, *, vocab_size: int, eos_ids: AbstractSet[int]) -> None:
        self._tokenizer = tokenizer
        self._vocab_size, self._eos_ids = vocab_size, eos_ids
        self._compile = functools.lru_cache(maxsize=_KEPT_SCHEMAS)(self._compile_anew)

    def check(self, json_schema: str) -> None:
        """Raise UsageError, naming json_schema, unless outputs can be held to the schema."""
        self._compile(json_schema)

    def start(self, json_schema: str) -> Constraint:
        """Return the constraint of an output that has not begun.

        Raises:
            UsageError: as `check`.
        """
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
