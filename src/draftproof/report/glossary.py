"""The terms of the report with their formulas, in the words of the metrics page."""

GLOSSARY: tuple[tuple[str, str, str], ...] = (
    (
        "Time per token",
        "tpot_ns = (last content chunk − first content chunk) / (output tokens − tokens in the first chunk)",
        "The rate of generation of one request; an interval where nobody counts its first chunk.",
    ),
    (
        "Time to first token",
        "ttft_from_schedule_ns = first content chunk − time the request was due",
        "Counts waiting in the client, so an overloaded service cannot hide its queue.",
    ),
    (
        "End-to-end time",
        "e2e_from_schedule_ns = last event − time the request was due",
        "What the user waits for the whole answer.",
    ),
    (
        "Failure-inclusive percentile",
        "nearest rank over all requests, a request that is not OK counts as +∞",
        "A service that drops its slow requests does not look fast.",
    ),
    (
        "Effect",
        "ratio = statistic of the arm / the same statistic of the baseline, paired by prompt and block",
        "Below 1 is faster. Intervals come from resampling prompts, with the same draw for both arms.",
    ),
    (
        "Simultaneous interval",
        "widened so that all cells of the run hold together at the stated confidence",
        "Guards against finding a gain by looking at many segments.",
    ),
    (
        "Draft acceptance rate",
        "accepted draft tokens / draft tokens",
        "Says little on its own about speed, so it is never the headline.",
    ),
    (
        "Mean acceptance length (conditional)",
        "1 + accepted draft tokens / verification steps",
        "Counts only steps that had a draft, and includes the target's own token.",
    ),
    (
        "Tokens per decode step (unconditional)",
        "committed tokens / decode steps",
        "Counts every step, drafted or not. This one bounds the speed-up.",
    ),
    (
        "Acceptance at position i",
        "P(draft i accepted | drafts before i accepted, and a draft i existed)",
        "A steep fall means that shorter drafts would do.",
    ),
    (
        "Committed progress",
        "time per committed token = Σ time of rounds / Σ committed tokens",
        "Ordinary decoding commits one token per round. A diagnosis beside the tails, not instead of them.",
    ),
    (
        "End-to-end bound",
        "gain = 1 / ((1 − f) + f / s), at most 1 / (1 − f)",
        "f is the share of time spent decoding, s the speed-up of decoding.",
    ),
    (
        "Cell",
        "segment × load level",
        "The unit of the verdict. An invalid cell is never averaged in.",
    ),
    (
        "Off-off null",
        "the baseline run a second time as if it were another arm",
        "Shows how much two equal arms differ on this machine.",
    ),
)
