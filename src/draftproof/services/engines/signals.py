"""What an engine's Prometheus metrics can tell of an arm in operation: the shape, without any names.

Pure data. A signal that an engine lacks is None and stands in `missing` with the reason.
"""

from typing import NamedTuple

import msgspec


class Sample(NamedTuple):
    """One sample name, with label matchers in PromQL where only some of its series count.

    `is_optional`: the series may not exist before its first event, which then means none so far.
    `replica_labels`: series that differ in these alone state one fact, which counts once.
    """

    name: str
    matchers: str = ""
    is_optional: bool = False
    replica_labels: tuple[str, ...] = ()


Samples = tuple[Sample, ...]


class DecodeTime(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds spent on tokens and the tokens they brought: their quotient is the time per token.

    `seconds`: summed over the same requests as the tokens. `tokens`: tokens that these seconds brought.
    `first_tokens`: to be taken off the tokens: they come from the prefill, not from decoding. `caveat`: what
    the quotient holds besides decoding, "" where nothing.
    """

    seconds: Sample
    tokens: Sample
    first_tokens: Sample | None = None
    caveat: str = ""


class Signals(msgspec.Struct, frozen=True, kw_only=True):
    """The sample names of one engine, by what they tell.

    Attributes:
        tokens: generated tokens; moves whenever the arm works.
        finished: requests that ended; None where the engine does not count them.
        attempted: the denominator of the failed share.
        decode_time: for the mean time per token.
        tpot_bucket: buckets of the time per output token of a request.
        ttft_bucket: buckets of the time to first token.
        accepted: accepted drafts, over `steps`.
        acceptance_gauge: the mean acceptance length where there are no counters of it.
        cache_usage: share of the key-value cache in use.
        preemptions: requests that lost their cache and began again.
        model_label: label that names the model, on `running`.
        missing: signal -> why this engine cannot tell it.
        caveats: signal -> what to know before one trusts it.
    """

    title: str
    tokens: Samples = ()
    finished: Samples = ()
    attempted: Samples = ()
    failed: Samples = ()
    decode_time: DecodeTime | None = None
    tpot_bucket: str | None = None
    ttft_bucket: str | None = None
    drafting: Sample | None = None
    accepted: Sample | None = None
    steps: Sample | None = None
    acceptance_gauge: Sample | None = None
    cache_usage: Sample | None = None
    preemptions: Sample | None = None
    running: Sample | None = None
    waiting: Sample | None = None
    model_label: str | None = None
    missing: dict[str, str] = {}
    caveats: dict[str, str] = {}


HIDDEN_ERRORS = "requests refused before they reach the engine are not in its metrics"
NO_CACHE_SHARE = "the engine exports no share of its key-value cache"
NO_PREEMPTIONS = "the engine exports no counter of preemptions"
NO_MODEL_LABEL = "its metrics carry no model label"
UNKNOWN_SERVICE = Signals(
    title="a service of which only the answers are known",
    missing=dict.fromkeys(
        (
            *("time_per_token_seconds", "tail_time_per_token_seconds", "tail_ttft_seconds", "failed_share"),
            *("drafting", "acceptance_length", "cache_usage", "preemptions_per_request"),
            *("requests_in_flight", "model", "restarts"),
        ),
        "nothing is known of this service's metrics",
    ),
)
