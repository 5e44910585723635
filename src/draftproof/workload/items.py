"""One item of a workload: what is asked, within which limits, and how the answer is judged. Pure data.

Segment labels are free-form data of the item, never code. A request is named by its item and a mark: `+1` is
a later turn of a conversation, `#fill3` a request that does not count, `~2` an item's copy in a search for
the knee; no item may have such a name.
"""

import re
from collections.abc import Collection
from typing import Any, Literal

import msgspec

from draftproof.core.errors import WorkloadError
from draftproof.core.manifests import EvidenceLevel

DEFAULT_LIMIT = 64  # tokens of an answer where an item states no limit


class ExactCheck(msgspec.Struct, frozen=True, kw_only=True, tag="exact", forbid_unknown_fields=True):
    """The answer, stripped, equals `value`."""

    value: str
    ignore_case: bool = False
    critical: bool = False


class ContainsCheck(msgspec.Struct, frozen=True, kw_only=True, tag="contains", forbid_unknown_fields=True):
    """Every string of `all_of`, at least one of `any_of` (if given), and none of `none_of` occurs."""

    all_of: tuple[str, ...] = ()
    any_of: tuple[str, ...] = ()
    none_of: tuple[str, ...] = ()
    ignore_case: bool = True
    critical: bool = False


class NumericCheck(msgspec.Struct, frozen=True, kw_only=True, tag="numeric", forbid_unknown_fields=True):
    """A number of the answer (`pick`: the first or the last) is within `tolerance` of `value`."""

    value: float
    tolerance: float = 0.0
    pick: Literal["first", "last"] = "first"
    critical: bool = False


class RegexCheck(msgspec.Struct, frozen=True, kw_only=True, tag="regex", forbid_unknown_fields=True):
    """The pattern (Python `re`, searched, DOTALL and MULTILINE) matches."""

    pattern: str
    critical: bool = False


class JsonSchemaCheck(
    msgspec.Struct, frozen=True, kw_only=True, tag="json_schema", forbid_unknown_fields=True
):
    """The answer's JSON value (whole text, else first fenced or braced block) is valid under `schema`."""

    schema: dict[str, Any]
    critical: bool = False


class LengthCheck(msgspec.Struct, frozen=True, kw_only=True, tag="length", forbid_unknown_fields=True):
    """The answer has between `min_chars` and `max_chars` characters after stripping."""

    min_chars: int = 1
    max_chars: int | None = None
    critical: bool = False


class ToolCallCheck(msgspec.Struct, frozen=True, kw_only=True, tag="tool_call", forbid_unknown_fields=True):
    """The answer's tool calls are those that are wanted.

    Every name of `names` is called. The calls looked at are those with such a name, all calls without
    `names`. Each of these has arguments that are a JSON object, valid under `schema` and equal to `arguments`
    (`match` exact), or holding at least these keys with these values (subset). `calls` is the number of calls
    of the whole answer: none for one at least, 0 for an answer that must call nothing.
    """

    names: tuple[str, ...] = ()
    arguments: dict[str, Any] | None = None
    match: Literal["exact", "subset"] = "subset"
    schema: dict[str, Any] | None = None
    calls: int | None = None
    critical: bool = False


class FinishReasonCheck(
    msgspec.Struct, frozen=True, kw_only=True, tag="finish_reason", forbid_unknown_fields=True
):
    """The answer ended for one of these reasons, in the words of the protocol: stop, length, tool_calls."""

    any_of: tuple[str, ...]
    critical: bool = False


class StopCheck(msgspec.Struct, frozen=True, kw_only=True, tag="stop", forbid_unknown_fields=True):
    """No stop string is in the answer and, if `ended`, it ended by itself or by one of them.

    `strings`: empty for those that the item sends.
    """

    strings: tuple[str, ...] = ()
    ended: bool = True
    critical: bool = False


class PythonCheck(msgspec.Struct, frozen=True, kw_only=True, tag="python", forbid_unknown_fields=True):
    """A function of the user's says whether the answer passes; asked once, after the run.

    `function` is "file.py:name", the file beside the workload, or "module:name". It gets a frozen view of the
    answer and returns a bool, or a bool and a sentence.
    """

    function: str
    timeout_s: float = 10.0
    critical: bool = False


class JudgeCheck(msgspec.Struct, frozen=True, kw_only=True, tag="judge", forbid_unknown_fields=True):
    """A judge model says one of `verdicts`, and `expected` passes; asked after the run, blind to the arm.

    `prompt` holds {answer} and may hold {question}, {rubric} and {words}; "" takes the built-in one.
    """

    rubric: str
    prompt: str = ""
    verdicts: tuple[str, ...] = ("yes", "no")
    expected: str = "yes"
    critical: bool = False


TextCheck = ExactCheck | ContainsCheck | NumericCheck | RegexCheck | JsonSchemaCheck | LengthCheck
DeferredCheck = PythonCheck | JudgeCheck
Check = TextCheck | ToolCallCheck | FinishReasonCheck | StopCheck | DeferredCheck


def is_of_form(check: Check) -> bool:
    """Return whether a check looks at the form of an answer alone: any content of that form passes it."""
    return isinstance(check, JsonSchemaCheck) or (
        isinstance(check, ToolCallCheck) and check.arguments is None and check.calls != 0
    )


class TextPart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of several texts of a message; how they are joined is the service's."""

    type: Literal["text"]
    text: str


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A chat message of the OpenAI form; `tool_call_id` names the call that a tool's message answers.

    `content` is None where the assistant said nothing but called tools.
    """

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | tuple[TextPart, ...] | None = None
    name: str | None = None
    tool_calls: tuple[dict[str, Any], ...] = ()
    tool_call_id: str | None = None

    @property
    def text(self) -> str:
        """What the message says, "" where it says nothing."""
        if self.content is None or isinstance(self.content, str):
            return self.content or ""
        return "\n".join(part.text for part in self.content)


class Sampling(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Sampling of the request; temperature 0 is greedy."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None


class FollowUp(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A later turn of a conversation: what is sent once the answer before it has ended.

    `tool_results` answer the tool calls of that answer, in their order, and go before `content`. Of
    `max_tokens`, `stop` and `tool_choice` none keeps the item's own.
    """

    content: str = ""
    role: Literal["user"] = "user"
    tool_results: tuple[str, ...] = ()
    checks: tuple[Check, ...] = ()
    max_tokens: int | None = None
    stop: tuple[str, ...] | None = None
    tool_choice: str | dict[str, Any] | None = None


class Item(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One line of a workload file.

    `segments` maps a dimension to a label, e.g. {"task": "rewriting", "language": "ar",
    "sampling": "regulated", "prompt_length": "short", "history": "none", "answer_length": "short",
    "traffic": "interactive"}. `checks` judge the answer to `messages`, those of a follow-up the answer to it.
    `due_ns` is when a recorded request came, from the first of its trace; None: the workload is no recording.
    `withheld_prompt` stands in a package whose prompts are withheld: the characters of the prompt, and of the
    longest beginning that it shares with another prompt; `withheld_like` names the item that it is nearly the
    same as, see `find_near_copies`. `request` are further fields of the request, sent as they stand
    (`formats.py`).
    """

    id: str
    messages: tuple[Message, ...]
    segments: dict[str, str]
    checks: tuple[Check, ...] = ()
    max_tokens: int = DEFAULT_LIMIT
    sampling: Sampling = Sampling()
    stop: tuple[str, ...] = ()
    tools: tuple[dict[str, Any], ...] = ()
    tool_choice: str | dict[str, Any] | None = None
    response_schema: dict[str, Any] | None = None
    request: dict[str, Any] = {}
    follow_ups: tuple[FollowUp, ...] = ()
    withheld_prompt: tuple[int, int] | None = None
    withheld_like: str | None = None
    due_ns: int | None = None

    @property
    def is_greedy(self) -> bool:
        """Whether nothing in its answer is left to chance."""
        return self.sampling.temperature == 0

    @property
    def turns(self) -> int:
        """Requests of the whole conversation, 1 without follow-ups."""
        return 1 + len(self.follow_ups)


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """A named, versioned and hashed list of items, in file order.

    `notes` say what of the file is not sent as it stands, a sentence each.
    """

    name: str
    version: str
    licence: str
    evidence: EvidenceLevel
    sha256: str
    items: tuple[Item, ...]
    notes: tuple[str, ...] = ()


_MARK = re.compile(r"(?:\+\d+|#[a-z_]+\d+(?:\.\d+)?|~\d+)\Z", re.ASCII)


def check_ids(ids: Collection[str], place: str) -> None:
    """Refuse an id that is another one with a mark of a run behind it. Raises WorkloadError: names both."""
    for name in ids:
        other = name
        while found := _MARK.search(other):
            other = other[: found.start()]
            if other in ids:
                raise WorkloadError(
                    f"the id {name!r} is what a run calls a request of the item {other!r}",
                    place=place,
                    fix="give one of them another id.",
                )


def find_violation(value: object, schema: dict[str, Any]) -> tuple[bool | None, str]:
    """Return whether a value is valid under a schema, and its first fault; None where that stays open."""
    # Its formats compile grammars for seconds, and most runs have no schema.
    import jsonschema  # noqa: PLC0415
    from referencing.exceptions import Unresolvable  # noqa: PLC0415

    validator = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)(schema)
    try:
        fault = jsonschema.exceptions.best_match(validator.iter_errors(value))
    except (Unresolvable, re.error, RecursionError, ArithmeticError) as error:
        return None, f"the schema cannot be applied: {type(error).__name__}"
    if fault is None:
        return True, "valid"
    return False, f"{fault.json_path}: {fault.message[:120]}"
