"""PromQL in text: selectors, sums over windows, quotients, quantiles. Pure; knows no engine and no plan."""

import json
import re
from collections.abc import Sequence

from draftproof.engines.signals import DecodeTime, Sample, Samples

_SPECIAL = re.compile(r"[\\^$.|?*+()\[\]{}]")


def quote(text: str) -> str:
    """Return a double-quoted string that PromQL, YAML and JSON all read alike.

    Characters beyond the basic plane stand as they are: JSON's pairs of surrogates are not YAML.
    """
    return "".join(_escape(character) for character in json.dumps(text, ensure_ascii=False))


def _escape(character: str) -> str:
    return character if character.isprintable() else f"\\u{ord(character):04x}"


def select_jobs(jobs: Sequence[str]) -> str:
    """Return the matcher of the scrape jobs of an arm: equal to one, or to any of several."""
    if len(jobs) == 1:
        return f"job={quote(jobs[0])}"
    return "job=~" + quote("|".join(_SPECIAL.sub(r"\\\g<0>", job) for job in jobs))


def select(sample: Sample, jobs: Sequence[str]) -> str:
    """Return the selector of a sample in the jobs of an arm."""
    return f"{sample.name}{{{','.join(filter(None, (select_jobs(jobs), sample.matchers)))}}}"


def once(sample: Sample, expression: str) -> str:
    """Return an expression over a sample's series with replicas of one fact taken once."""
    labels = ", ".join(sample.replica_labels)
    return f"max without ({labels}) ({expression})" if labels else expression


def increase(samples: Samples, jobs: Sequence[str], window_s: int) -> str:
    """Return by how much counters rose in the window, over all replicas; resets are allowed for."""
    parts = [_one_increase(sample, jobs, window_s) for sample in samples]
    return parts[0] if len(parts) == 1 else "(\n  " + "\n  + ".join(parts) + "\n)"


def _one_increase(sample: Sample, jobs: Sequence[str], window_s: int) -> str:
    total = f"sum({once(sample, f'increase({select(sample, jobs)}[{window_s}s])')})"
    return f"({total} or vector(0))" if sample.is_optional else total


def time_per_token(decode: DecodeTime, jobs: Sequence[str], window_s: int) -> str:
    """Return seconds of decoding over the tokens they brought, in the window, over all replicas."""
    tokens = increase((decode.tokens,), jobs, window_s)
    if decode.first_tokens is not None:
        tokens = f"({tokens} - {increase((decode.first_tokens,), jobs, window_s)})"
    return f"{increase((decode.seconds,), jobs, window_s)}\n/\n{tokens}"


def quantile(bucket: str, jobs: Sequence[str], window_s: int, share: float) -> str:
    """Return a quantile over the requests that ended in the window, over all replicas."""
    rate = f"sum by (le) (rate({select(Sample(bucket), jobs)}[{window_s}s]))"
    return f"histogram_quantile({share:g}, {rate})"


def share_of(part: Samples, whole: Samples, jobs: Sequence[str], window_s: int) -> str:
    """Return the part of one set of counters in another, in the window."""
    return f"{increase(part, jobs, window_s)}\n/\n{increase(whole, jobs, window_s)}"


def indent(text: str, by: str) -> str:
    """Return a text with every line moved to the right."""
    return "\n".join(by + line for line in text.splitlines())
