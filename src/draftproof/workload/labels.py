"""Labels that can be told from a request itself, by simple rules, and the split that they allow. Pure.

A rule looks at words and fields of the request, never at an answer: what somebody wants is not known here,
only what the request shows. The rules are in docs/workloads.md.
"""

import hashlib
import math
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from draftproof.workload.items import Item, Message
from draftproof.workload.recordings import label_lengths

LEAST_PROMPTS = 12  # distinct ones of a segment: with fewer an interval says nothing
MOST_CELLS = 8
MOST_RARE = 0.1  # of all prompts, in a segment of rare labels that is too small for an interval
OTHER, WHOLE = "other", "whole"
# In this order of preference where two split into as many segments.
_TASK = "task"
DIMENSIONS = (_TASK, "prompt_length", "language", "turns", "system", "sampling")
_ASCII_CHARACTERS_PER_TOKEN = 4
_LONG_CONTEXT_TOKENS, _SHORT_QUESTION_TOKENS = 400, 60
_HEAD_OF_SYSTEM = 200  # characters; what follows may be a date or a name
_READ_CHARACTERS = 4000
_SCHEMA_FIELDS = ("response_format", "guided_json", "guided_regex", "guided_choice", "guided_grammar")
_CODE_LINE = re.compile(
    r"^\s*(?:def |class |import \w|from [\w.]+ import |#include|func |fn |const |let |var |public |private |"
    r"package |SELECT |INSERT INTO |CREATE TABLE |<\?php|#!/)",
    re.MULTILINE,
)
# What an order to work on a text begins with, by its task.
_ORDERS = {
    "summary": r"summari[sz]e|sum up|condense|(?:give|write)(?: me)? an? (?:\w+ )?summary",
    "translation": r"translate",
    "extraction": r"extract|pull out",
    "classification": r"classify|categori[sz]e|label|assign",
    "rewriting": r"rewrite|rephrase|reword|paraphrase|proofread|edit|shorten|simplify|convert|remove|replace|"
    r"(?:correct|polish|turn) (?:this|it|these|the|my)|(?:make|put|write) (?:this|it|these)",
}
_POLITE = (
    r"(?:please,? |kindly |(?:can|could|would|will) you |(?:i (?:want|need)|your task is) (?:you )?(?:to )?)*"
)
_ORDER = re.compile(
    _POLITE + "(?:" + "|".join(rf"(?P<{task}>{verbs})" for task, verbs in _ORDERS.items()) + r")\b",
    re.IGNORECASE,
)
# A language that is mixed with Han characters in one text.
_SCRIPTS = {"CJK": "han", "HIRAGANA": "japanese", "KATAKANA": "japanese"}


def estimate_tokens(text: str) -> int:
    """Estimate a text's tokens: four ASCII characters each, and every other character as one token.

    Outside ASCII four characters a token would be far too few for vocabularies trained on English.
    """
    ascii_characters = len(text.encode("ascii", "ignore"))
    return math.ceil(ascii_characters / _ASCII_CHARACTERS_PER_TOKEN) + len(text) - ascii_characters


def label_item(
    item: Item, prompt_tokens: int | None, output_tokens: int | None, system: str
) -> dict[str, str]:
    """Return the labels of an item: dimension -> label.

    `prompt_tokens`, `output_tokens`: recorded lengths; a prompt's is estimated where it is not recorded, an
    answer's is not. `system`: the label of its system prompt, see `name_systems`.
    """
    tokens = (
        sum(estimate_tokens(one.text) for one in item.messages) if prompt_tokens is None else prompt_tokens
    )
    return label_lengths(tokens, output_tokens) | {
        "task": tell_task(item),
        "language": tell_script(_find_question(item)),
        "turns": "several" if _has_history(item) else "one",
        "system": system,
        "sampling": "creative" if item.sampling.temperature > 0 else "regulated",
    }


def tell_task(item: Item) -> str:
    """Return a request's task: the first of tools, schema, code, what it orders, grounded, chat, question."""
    if (item.tools or "functions" in item.request) and item.tool_choice != "none":
        return "tools"
    if item.response_schema is not None or _asks_for_form(item.request):
        return "schema"
    question = _find_question(item)
    if "```" in question or len(_CODE_LINE.findall(question)) > 1:
        return "code"
    paragraphs = [part.strip() for part in re.split(r"\n\s*\n", question) if part.strip()]
    if task := _find_order(paragraphs):
        return task
    if _is_grounded(paragraphs):
        return "grounded"
    return "chat" if _has_history(item) else "question"


def tell_script(text: str) -> str:
    """Return the script of most letters of a text, "latin", "arabic", "han" …; "none" without letters.

    Han characters among kana are Japanese.
    """
    counts: Counter[str] = Counter()
    for character, number in Counter(text[:_READ_CHARACTERS]).items():
        if character.isalpha():
            name = unicodedata.name(character, "").partition(" ")[0]
            counts[_SCRIPTS.get(name, name.lower())] += number
    if counts["han"] and 10 * counts["japanese"] > counts["han"]:
        counts["japanese"] += counts.pop("han")
    most = max(counts, key=lambda script: (counts[script], script), default="none")
    return most or OTHER


def name_systems(items: Iterable[Item]) -> tuple[str, ...]:
    """Return the label of each item's system prompt: sys1 and sys2 for the most frequent, other, or none.

    Prompts with the same first 200 characters are one.
    """
    heads = [_read_system(item) for item in items]
    counts = Counter(head for head in heads if head is not None)
    named = {head: f"sys{rank}" for rank, (head, _) in enumerate(counts.most_common(2), start=1)}
    return tuple("none" if head is None else named.get(head, OTHER) for head in heads)


def _read_system(item: Item) -> str | None:
    texts = [one.text for one in item.messages if one.role in {"system", "developer"}]
    return "\n".join(texts)[:_HEAD_OF_SYSTEM] if texts else None


def _has_history(item: Item) -> bool:
    return bool(item.follow_ups) or any(one.role == "assistant" for one in item.messages)


def _asks_for_form(request: Mapping[str, Any]) -> bool:
    stated = request.get("response_format")
    is_text = stated is None or (isinstance(stated, dict) and stated.get("type") == "text")
    return not is_text or any(key in request for key in (*_SCHEMA_FIELDS[1:], "structured_outputs"))


def _find_question(item: Item) -> str:
    """Return what the person said last, "" for nothing."""
    said = [one.text for one in item.messages if one.role == "user"]
    return said[-1] if said else ""


def _find_order(paragraphs: Sequence[str]) -> str | None:
    """Return what the first or last paragraph orders to be done to a text, None where neither begins so."""
    found = (_ORDER.match(part) for part in (*paragraphs[:1], *paragraphs[-1:]))
    return next((one.lastgroup for one in found if one), None)


def _is_grounded(paragraphs: Sequence[str]) -> bool:
    """Tell whether a message has a long text and a short first or last paragraph, which asks."""
    if len(paragraphs) < 2:
        return False
    sizes = [estimate_tokens(part) for part in paragraphs]
    shortest = min(sizes[0], sizes[-1])
    return shortest <= _SHORT_QUESTION_TOKENS and sum(sizes) - shortest >= _LONG_CONTEXT_TOKENS


class Split(msgspec.Struct, frozen=True, kw_only=True):
    """A proposed `segment_by`, why, and the labels that it renames: dimension -> old label -> new one."""

    segment_by: tuple[str, ...]
    why: str
    renamed: dict[str, dict[str, str]] = {}


def choose_split(items: Sequence[Item]) -> Split:
    """Return the dimension that splits a workload into segments of `LEAST_PROMPTS` different prompts each.

    That is the task, on which it depends most whether speculation pays, else the dimension with the fewest
    segments. Two dimensions together never have fewer segments than one of them. Where a dimension does not
    split so, its rare labels are joined as "other", which may be too small if it is a tenth of all or less;
    where that does not help either, the workload stays whole.
    """
    counts = {name: count_prompts(items, name) for name in _list_dimensions(items)}
    for is_joined, names in ((False, (_TASK,)), (True, (_TASK,)), (False, counts), (True, counts)):
        found = {
            name: _join_rare(counts[name]) if is_joined else dict.fromkeys(counts[name])
            for name in names
            if name in counts
        }
        sizes = {name: _sum_joined(counts[name], found[name]) for name in found}
        fitting = [name for name, size in sizes.items() if _fits(size)]
        if fitting:
            name = min(fitting, key=lambda one: (one != _TASK, len(sizes[one])))
            return _explain(
                name, sizes[name], {old: new for old, new in found[name].items() if new is not None}
            )
    return _stay_whole(items, counts)


def count_prompts(items: Iterable[Item], dimension: str) -> dict[str, int]:
    """Return label -> distinct prompts of a dimension; items without a label of it count as none."""
    prompts: defaultdict[str, set[bytes]] = defaultdict(set)
    for item in items:
        prompts[item.segments.get(dimension, "")].add(digest_messages(item.messages))
    return {label: len(found) for label, found in prompts.items()}


def digest_messages(messages: tuple[Message, ...]) -> bytes:
    """Return what tells two prompts apart."""
    return hashlib.sha256(msgspec.json.encode(messages)).digest()


def _list_dimensions(items: Iterable[Item]) -> list[str]:
    present = dict.fromkeys(name for item in items for name in item.segments)
    further = (name for name in present if name not in (*DIMENSIONS, "answer_length"))
    return [*(name for name in DIMENSIONS if name in present), *further]


def _join_rare(count: Mapping[str, int]) -> dict[str, str | None]:
    return {label: OTHER if prompts < LEAST_PROMPTS else None for label, prompts in count.items()}


def _sum_joined(count: Mapping[str, int], renamed: Mapping[str, str | None]) -> dict[str, int]:
    sizes: Counter[str] = Counter()
    for label, prompts in count.items():
        sizes[renamed[label] or label] += prompts
    return dict(sizes)


def _fits(sizes: Mapping[str, int]) -> bool:
    """Return whether segments are large enough; a few rare labels together may be a small one."""
    rare = sizes.get(OTHER, 0)
    is_small = 0 < rare < LEAST_PROMPTS
    full = {label: size for label, size in sizes.items() if not (is_small and label == OTHER)}
    if "" in sizes or len(sizes) > MOST_CELLS or len(full) < 2 or min(full.values()) < LEAST_PROMPTS:
        return False
    return not is_small or rare <= MOST_RARE * sum(sizes.values())


def _explain(name: str, sizes: Mapping[str, int], renamed: dict[str, str]) -> Split:
    few = sizes.get(OTHER, LEAST_PROMPTS) < LEAST_PROMPTS
    labels = f"{len(renamed)} rare label{'s are' if len(renamed) > 1 else ' is'}"
    joined = (
        f"; {labels} joined as `{OTHER}`{', with too few for an interval' if few else ''}" if renamed else ""
    )
    why = (
        f"{name} splits the log into {len(sizes) - few} segments that have {LEAST_PROMPTS} different prompts "
        f"each or more{joined}"
    )
    return Split(segment_by=(name,), why=why, renamed={name: renamed} if renamed else {})


def _stay_whole(items: Sequence[Item], counts: Mapping[str, Mapping[str, int]]) -> Split:
    prompts = len({digest_messages(item.messages) for item in items})
    why = (
        f"no label splits the {prompts} different prompts into segments of {LEAST_PROMPTS} or more, so "
        "the log stays whole"
    )
    if len(counts.get(_TASK, ())) == 1:
        return Split(segment_by=(_TASK,), why=why)
    return Split(segment_by=("log",), why=why, renamed={"log": {"": WHOLE}})
