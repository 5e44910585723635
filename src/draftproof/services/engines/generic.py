"""A service that is only known to speak the protocol of OpenAI's chat completions.

A strict service refuses a field it does not know, so what lies beyond that protocol is tried before the run
and asked only where it is accepted. What the service does not disclose stays unknown: the mechanism is
recorded as undisclosed and only delivery is measured.
"""

from draftproof.services.engines.adapter import EngineAdapter
from draftproof.services.engines.chat.metrics_block import read_metrics
from draftproof.services.engines.facts import EngineFacts

GENERIC = EngineAdapter(
    facts=EngineFacts(name="generic", title="OpenAI-compatible service", metrics_path=""),
    # Usage at the end of the stream is of the protocol, at every chunk it is not.
    ask=lambda _item: {"stream_options": {"include_usage": True}},
    optional={
        "stream_options.continuous_usage_stats": {
            "stream_options": {"include_usage": True, "continuous_usage_stats": True}
        },
        "return_token_ids": {"return_token_ids": True},
    },
    read_blocks=read_metrics,
    cannot_vary="which options bound its drafts and fix their acceptance is not known; "
    "name the engine in arms.candidate.engine",
)
