"""What services say outside their answers: JSON bodies, facts of the platform, sums over metrics. Pure.

A body that is not what it should be says nothing; a fact that a text does not state is absent. A series is a
sample name with its labels in alphabetical order, as `telemetry.prometheus` writes it. Shards of work are
added up; replicas of one fact are not: the ranks of tensor, pipeline, expert and context parallelism each
state the same requests.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from draftproof.services.engines.facts import PLATFORM, Settings


def decode_body(body: bytes | None) -> Any:
    """Return the decoded JSON of a body, None where there is no body or it is not JSON."""
    if body is None:
        return None
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def decode_object(body: bytes | None) -> dict[str, Any]:
    """Return the decoded JSON object of a body, {} where there is none."""
    return as_table(decode_body(body))


def list_cards(bodies: Mapping[str, bytes]) -> list[dict[str, Any]]:
    """Return what /v1/models says of each model, none where it says nothing."""
    cards = decode_object(bodies.get("/v1/models")).get("data")
    return [as_table(card) for card in cards] if isinstance(cards, list) else []


def as_table(value: object) -> dict[str, Any]:
    """Return a decoded value that is an object, {} for any other."""
    return value if isinstance(value, dict) else {}


def as_text(value: object) -> str | None:
    """Return a decoded value that is a text, None for any other."""
    return value if isinstance(value, str) else None


def as_count(value: object) -> int | None:
    """Return a decoded value that is a whole number, None for any other."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


_UNKNOWN_WORDS = frozenset({"", "N/A", "None", "Could not collect"})
_GPU = re.compile(r"^(?:GPU )?\d+: (.+?)(?: \(UUID: [^)]*\))?$", re.MULTILINE)
_SMI = re.compile(r"Driver Version: (\S+)\s+CUDA Version: (\S+)")
_NCCL = re.compile(r"\bis using nccl==(\S+)")


def name_facts(facts: Mapping[str, object]) -> Settings:
    """Return facts of the platform under their names as settings; what is not reported is left out."""
    texts = {name: value.strip() for name, value in facts.items() if isinstance(value, str)}
    return {f"{PLATFORM}{name}": value for name, value in texts.items() if value not in _UNKNOWN_WORDS}


def join_names(names: Iterable[str]) -> str | None:
    """Return the kinds of device there are, each once; how many is the budget's to say."""
    return ", ".join(sorted({name.strip() for name in names if name.strip()})) or None


def read_gpu_list(text: object) -> str | None:
    """Return the kinds of GPU in a list of lines "GPU 0: NAME", as `nvidia-smi -L` writes it."""
    return join_names(_GPU.findall(text)) if isinstance(text, str) else None


def read_smi(text: str) -> Settings:
    """Return driver and CUDA version of the head that `nvidia-smi` prints, wherever it stands in a text."""
    found = _SMI.search(text)
    return name_facts({"driver": found[1], "cuda": found[2]}) if found else {}


def read_nccl(text: str) -> Settings:
    """Return the NCCL version that vLLM's and SGLang's communicator logs."""
    found = _NCCL.search(text)
    return name_facts({"nccl": found[1]}) if found else {}


# SGLang with --enable-metrics-for-all-schedulers, `srt/observability/metrics_collector.py`.
_REPLICA = re.compile(r"(.*_)?(tp|pp|ep|cp|dcp|pcp)_rank")
# Beside the total, under an empty label, SGLang states the parts of it by priority.
_PARTS = ("priority",)
_LABEL = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)=("(?:[^"\\]|\\.)*")')


@lru_cache(maxsize=4096)
def parse_series(series: str) -> tuple[str, dict[str, str]]:
    """Return the sample name and the labels of a series."""
    name, _, inner = series.partition("{")
    return name, {key: _unquote(value) for key, value in _LABEL.findall(inner)}


def _unquote(quoted: str) -> str:
    """Return a label's value; escapes that JSON does not know stay as they are written."""
    try:
        return msgspec.json.decode(quoted, type=str)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return quoted[1:-1]


def list_facts(values: Mapping[str, float], wanted: str) -> list[float]:
    """Return the values of a name's series that have the labels of `wanted`, one for each fact.

    Of replicas, which may be read a moment apart, the largest counts.
    """
    name, labels = parse_series(wanted)
    found = [(parse_series(one)[1], value) for one, value in values.items() if _matches(one, name, labels)]
    return list(_merge(found).values())


def sum_series(values: Mapping[str, float], wanted: str) -> float | None:
    """Return the sum over all series of a name that have the labels of `wanted`, None where there is none."""
    found = list_facts(values, wanted)
    return sum(found) if found else None


def first_sum(values: Mapping[str, float], names: Sequence[str]) -> float | None:
    """Return the sum of the first name that is present, None where none is."""
    sums = (sum_series(values, name) for name in names)
    return next((value for value in sums if value is not None), None)


def sum_parts(values: Mapping[str, float], names: Sequence[str]) -> float | None:
    """Return the sum over all names that are present, None where none is."""
    found = [value for value in (sum_series(values, name) for name in names) if value is not None]
    return sum(found) if found else None


def sum_by_label(values: Mapping[str, float], name: str, label: str) -> dict[str, float]:
    """Return value of `label` -> sum over the series of `name` that have it."""
    found = [
        (labels, value)
        for one, value in values.items()
        if label in (labels := parse_series(one)[1]) and _matches(one, name, {})
    ]
    sums: dict[str, float] = {}
    for key, value in _merge(found).items():
        of = dict(key)[label]
        sums[of] = sums.get(of, 0.0) + value
    return sums


def _merge(found: Sequence[tuple[Mapping[str, str], float]]) -> dict[frozenset[tuple[str, str]], float]:
    """Return labels -> value, without replicas and without the parts of a total."""
    facts: dict[frozenset[tuple[str, str]], float] = {}
    totals = {part for part in _PARTS if any(labels.get(part) == "" for labels, _ in found)}
    for labels, value in found:
        if not any(labels.get(part) for part in totals):
            key = frozenset(one for one in labels.items() if not _REPLICA.fullmatch(one[0]))
            facts[key] = max(value, facts.get(key, value))
    return facts


def _matches(series: str, name: str, labels: Mapping[str, str]) -> bool:
    found, has = parse_series(series)
    # A counter's `_total` is the parser's where the service leaves it out, and so it may be there or not.
    same = found.removesuffix("_total") == name.removesuffix("_total")
    return same and all(has.get(key) == value for key, value in labels.items())
