"""llama.cpp's server: asked for its timings at every token, from which each decode step is known.

Names and words: release b11434, `tools/server/server-task.cpp`, `tools/server/server-context.cpp` and
`common/speculative.cpp`. docs/engines/llamacpp.md tells users where each number comes from.

llama.cpp's `timings` blocks to decode steps. Pure.

With `timings_per_token` every chunk has a block, and all tokens of one step carry the same time and the same
draft counters (release b11434, `tools/server/server-context.cpp`: the clock is read once for each step).
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from draftproof.core.records import ServerTimings, SpecCounts
from draftproof.services.engines.adapter import EngineAdapter, ProbeObservation
from draftproof.services.engines.chat.frames import EngineBlocks, Timings, ms_to_ns
from draftproof.services.engines.chat.metrics_block import MetricsReading
from draftproof.services.engines.facts import (
    DRAFT_LENGTH,
    DRAFTER,
    METHOD,
    NO_CACHE_SHARE,
    NO_MODEL_LABEL,
    NO_PREEMPTIONS,
    OFF,
    Confound,
    DecodeTime,
    EngineFacts,
    Family,
    Feature,
    Identity,
    Method,
    Release,
    Sample,
    Series,
    Settings,
    Signals,
    Starting,
)
from draftproof.services.engines.llamacpp.flags import read_context, read_flags, vary_llamacpp
from draftproof.services.engines.values import (
    as_count,
    as_table,
    as_text,
    decode_body,
    decode_object,
    join_names,
    list_cards,
    name_facts,
)
from draftproof.workload.items import Item


class _Moment(NamedTuple):
    """What one block states: the server's clock, and the answer's counts up to then."""

    at_ms: float | None
    tokens: int
    drafted: int
    accepted: int


class _Step(NamedTuple):
    """One decode step: drafts checked and accepted. Ordinary steps have none."""

    drafted: int
    accepted: int


# The first token comes from the prefill; before it there is nothing.
_START = _Moment(None, 0, 0, 0)


def read_timings(blocks: EngineBlocks) -> MetricsReading:
    """Return steps, drafts and server times of one answer; None where its blocks do not tell them.

    A block without draft counters means that nothing was drafted up to there: the server leaves zeros out.
    """
    if not blocks.timings or blocks.timings[-1].predicted_n == 0:  # zeros stand where nothing is known
        return MetricsReading()
    last = blocks.timings[-1]
    server = ServerTimings(prefill_ns=ms_to_ns(last.prompt_ms), decode_ns=ms_to_ns(last.predicted_ms))
    moments = [_to_moment(one) for one in blocks.timings]
    known = [moment for moment in moments if moment is not None]
    if len(moments) == 1 or len(known) < len(moments):
        # One block at the end has the sums and not the steps behind them.
        return MetricsReading(server=server)
    if any(
        new < old for before, now in pairwise(known) for old, new in zip(before[1:], now[1:], strict=True)
    ):
        return MetricsReading(warnings=("the timings fall in mid-stream: they are of more than one answer",))
    speculation, decode_steps = _count(known)
    return MetricsReading(speculation=speculation, server=server, decode_steps=decode_steps)


def _to_moment(one: Timings) -> _Moment | None:
    if one.predicted_n is None or one.predicted_ms is None:
        return None
    return _Moment(one.predicted_ms, one.predicted_n, one.draft_n or 0, one.draft_n_accepted or 0)


def _count(moments: Sequence[_Moment]) -> tuple[SpecCounts | None, int | None]:
    """Return the draft counters and the decode steps, each None where withheld text hides them."""
    last = moments[-1]
    if last.drafted == 0:
        return SpecCounts(0, 0, 0), max(0, last.tokens - 1)
    if _hides_steps(moments):
        return None, _count_hidden_steps(moments)
    steps = _to_steps(moments)
    return _summarise([step for step in steps if step.drafted]), len(steps)


def _hides_steps(moments: Sequence[_Moment]) -> bool:
    """Tell whether tokens are stated later than at the end of their step.

    A text that ends inside a character, or in what may become a stop string, is withheld with its tokens. The
    counts at the end of that step are then not stated, and those of the next chunk cover both steps.
    """
    return any(
        now.tokens - before.tokens > 1 and now.at_ms != before.at_ms
        for before, now in pairwise([_START, *moments])
    )


def _count_hidden_steps(moments: Sequence[_Moment]) -> int | None:
    """Every step commits its accepted drafts and one more token; a stop inside the last one may cut it."""
    last = moments[-1]
    before = next((one for one in reversed(moments) if one.at_ms != last.at_ms), _START)
    return None if last.accepted > before.accepted else last.tokens - 1 - last.accepted


def _to_steps(moments: Sequence[_Moment]) -> list[_Step]:
    """The server stamps all tokens of a step with one time, so every new time is a step."""
    ends = [now for now, after in pairwise([*moments, _START]) if after.at_ms != now.at_ms]
    return [
        _Step(now.drafted - before.drafted, now.accepted - before.accepted) for before, now in pairwise(ends)
    ]


def _summarise(steps: Sequence[_Step]) -> SpecCounts:
    accepted = Counter(step.accepted for step in steps)
    return SpecCounts(
        num_spec_steps=len(steps),
        num_draft_tokens=sum(step.drafted for step in steps),
        num_accepted_draft_tokens=sum(step.accepted for step in steps),
        acceptance_histogram=tuple(accepted[index] for index in range(max(accepted) + 1)),
        per_step_drafted=tuple(step.drafted for step in steps),
        per_step_accepted=tuple(step.accepted for step in steps),
    )


_FAMILIES: dict[str, Family] = {
    "ngram-simple": "ngram",
    "ngram-map-k": "ngram",
    "ngram-map-k4v": "ngram",
    "ngram-mod": "ngram",
    "ngram-cache": "ngram",
    "draft-simple": "draft_model",
    "draft-eagle3": "attached",
    "draft-mtp": "attached",
    "draft-dflash": "attached",
    "draft-dspark": "attached",
}
_DEFAULT_MATCH = 12  # of --spec-ngram-simple-size-n
_SLOTS = re.compile(r"initializing, n_slots = (\d+), n_ctx_slot = (\d+), kv_unified = '(true|false)'")
# "Device 0: NVIDIA H100, compute capability 9.0, VMM: yes" and "loaded CUDA backend from ...".
_DEVICE = re.compile(r"\bDevice \d+: ([^,\n]+), (?:compute capability|gfx)")
_BACKEND = re.compile(r"load_backend: loaded (\w+) backend")
_BUILD = re.compile(r"\bbuild: \d+ \(\w+\) with ([^\n]+)")
_NOT_STARTED = re.compile(r"failed to initialize speculative decoding context: (.+)")
_VOCABULARY = re.compile(r"the target and draft vocabs are not compatible")
_VOCABULARY_REASON = re.compile(
    r"(draft (?:model )?(?:vocab|bos|eos)[^\n]* must .+|token \d+ content differs.+)"
)
_SYNTHETIC = re.compile(r"synthetic acceptance: n_max = (\d+), mean length = (\d+(?:\.\d+)?)")
_SYNTHETIC_KEYS = ("speculation.synth_", "speculation.synthetic_", "env.LLAMA_ARG_SPEC_SYNTH")
_NO_SPECULATION = "speculative decoding not supported by this context"
_DRAFT_NOT_LOADED = "failed to load draft model"


def _ask(_item: Item) -> dict[str, Any]:
    """A prompt found in the cache of the last request would make an answer depend on the requests before."""
    return {
        "stream_options": {"include_usage": True},
        "timings_per_token": True,
        "cache_prompt": False,
    }


def _read_identity(bodies: Mapping[str, bytes]) -> Identity:
    """Read /props, /slots and /v1/models. `speculative.types` of /props says "none" whatever is in force."""
    props = decode_object(bodies.get("/props"))
    build = as_text(props.get("build_info"))
    is_ours = any(card.get("owned_by") == "llamacpp" for card in list_cards(bodies))
    found: Settings = {
        "max_model_len": as_count(as_table(props.get("default_generation_settings")).get("n_ctx")),
        "n_slots": as_count(props.get("total_slots")),
        "model_ftype": as_text(props.get("model_ftype")),
        METHOD: OFF if _cannot_speculate(bodies) else None,
    }
    return Identity(
        engine="llamacpp" if build is not None or is_ours else None,
        version=build,
        settings={key: value for key, value in found.items() if value is not None},
    )


def _cannot_speculate(bodies: Mapping[str, bytes]) -> bool:
    """Tell whether all slots say so; with which method one speculates a slot does not say."""
    slots = decode_body(bodies.get("/slots"))
    stated = [as_table(slot).get("speculative") for slot in slots] if isinstance(slots, list) else []
    return bool(stated) and all(one is False for one in stated)


def _read_log(text: str) -> Settings:
    settings = name_facts(
        {
            "accelerator": join_names(_DEVICE.findall(text)),
            "kernels": join_names(_BACKEND.findall(text)),
            "engine_build": found[1] if (found := _BUILD.search(text)) else None,
        }
    )
    if found := _SLOTS.search(text):
        settings |= {
            "n_slots": int(found[1]),
            "max_model_len": int(found[2]),
            "kv_unified": found[3] == "true",
        }
    if found := _SYNTHETIC.search(text):
        settings["speculation.synthetic_mean_length"] = float(found[2])
    if _NOT_STARTED.search(text) or _NO_SPECULATION in text:
        settings[METHOD] = OFF
    return settings


def _explain_off(evidence: ProbeObservation) -> str | None:
    """Name the trap by its own words in the log, else by the settings, else by what the slots say."""
    method = evidence.settings.get(METHOD)
    from_log = _explain_from_log(evidence.log)
    if from_log is not None:
        return from_log
    if method not in {None, OFF}:
        return None
    if DRAFTER in evidence.settings:
        return "a draft model is given without --spec-type draft-simple: it is loaded and never asked"
    if evidence.log:
        return "no --spec-type is given, so nothing drafts"
    return "its slots do not speculate" if _cannot_speculate(evidence.bodies) else None


def _explain_idle(evidence: ProbeObservation) -> str | None:
    method = evidence.settings.get(METHOD)
    return None if method in {None, OFF} else _explain_no_match(str(method), evidence.settings)


def _explain_no_match(method: str, settings: Settings) -> str:
    """`ngram-simple` drops a draft that is shorter than the n-gram it was found by."""
    shortest = settings.get("speculation.ngram_simple_size_n", _DEFAULT_MATCH)
    longest = settings.get(DRAFT_LENGTH)
    if method == "ngram-simple" and isinstance(shortest, int) and isinstance(longest, int):
        if longest < shortest:
            return f"ngram-simple never drafts fewer than size-n {shortest} tokens, and size-m is {longest}"
        return f"ngram-simple found no match of {shortest} tokens in the test request"
    return f"{method} found nothing to draft in the test request"


def _explain_from_log(log: str) -> str | None:
    if found := _VOCABULARY_REASON.search(log):
        return f"the draft model's vocabulary is not the target's ({found[1].strip()})"
    if _VOCABULARY.search(log):
        return (
            "the draft model's vocabulary is not the target's (start with -lv 5 to see the first difference)"
        )
    if _DRAFT_NOT_LOADED in log:
        return "the draft model could not be loaded"
    if found := _NOT_STARTED.search(log):
        return f"speculation could not be started ({found[1].strip()})"
    return "this model's context cannot drop rejected tokens" if _NO_SPECULATION in log else None


def _find_lossy(settings: Settings) -> str | None:
    synthetic = [key for key in settings if key.startswith(_SYNTHETIC_KEYS)]
    if not synthetic:
        return None
    return (
        f"drafts are accepted at random ({', '.join(sorted(synthetic))}), so the answers are not the target's"
    )


_SPEC = "llamacpp:spec_decode_num"
_CONFOUNDS = (
    Confound(
        text="a draft model has a key-value cache of its own, as long as the target's, so memory grows",
        settings=("ctx_size", "max_model_len"),
        pin="-c and -np in every arm and -fit off, else the context may be made smaller to make room",
        methods=("draft-simple", "draft-eagle3", "draft-mtp", "draft-dflash", "draft-dspark"),
    ),
    Confound(
        text="room for the logits of every draft of every slot is reserved, so memory grows with the drafts",
        settings=("parallel", "n_slots"),
        pin="-np in every arm",
    ),
    Confound(
        text="drafts of all slots are made in one call and verified in a batch with other slots' tokens",
        settings=("batch_size", "ubatch_size"),
        pin="-b and -ub in every arm, with room for slots × (draft length + 1)",
    ),
    Confound(
        text="the n-gram pool outlives requests: a prompt asked again is drafted from its earlier answer",
        methods=("ngram-mod", "ngram-cache"),
        pin="none; ask each prompt once, or take ngram-simple, which knows only its own request",
    ),
    Confound(
        text="a recurrent or hybrid target copies its state at every step and repeats a partly rejected one",
        pin="none; part of the method's price",
    ),
    Confound(
        text="the state of finished prompts is copied to host memory, a draft model's too",
        settings=("cache_ram",),
        pin="-cram 0 in every arm",
    ),
)
_REFUSES = (
    Feature(
        text="logprobs of accepted drafts are absent from the answer",
        fields=("logprobs", "top_logprobs", "n_probs"),
    ),
    Feature(text="images and audio together with speculation end in an error"),
    Feature(text="the fields speculative.* of a request are ignored in silence", fields=("speculative.",)),
)
_LACKS = (
    Feature(text="token ids in a chat stream"),
    Feature(text="usage of all choices together when n is above 1: each choice states its own"),
    Feature(text="speculation switched per request"),
    Feature(text="key-value cache use, preemptions and queueing time in the metrics"),
    Feature(text="time spent drafting, but for a log line at -lv 4"),
)

_SIGNALS = Signals(
    title="llama.cpp",
    tokens=(Sample("llamacpp:tokens_predicted_total"),),
    decode_time=DecodeTime(
        seconds=Sample("llamacpp:tokens_predicted_seconds_total"),
        tokens=Sample("llamacpp:tokens_predicted_total"),
        caveat="the first token of each answer is among the tokens, its time is not among the seconds",
    ),
    drafting=Sample(f"{_SPEC}_drafts_total", is_optional=True),
    accepted=Sample(f"{_SPEC}_accepted_tokens_total"),
    steps=Sample(f"{_SPEC}_drafts_total"),
    running=Sample("llamacpp:requests_processing"),
    waiting=Sample("llamacpp:requests_deferred"),
    missing={
        "tail_time_per_token_seconds": "the engine exports no histogram",
        "tail_ttft_seconds": "the engine exports no histogram",
        "failed_share": "the engine counts neither requests nor failures",
        "cache_usage": NO_CACHE_SHARE,
        "preemptions_per_request": NO_PREEMPTIONS,
        "model": NO_MODEL_LABEL,
    },
    caveats={
        "time_per_token_seconds": "counters move when an answer ends: a long one shows late; needs --metrics",
        "finished_requests": "requests are not counted: generated tokens stand in for them in every floor",
    },
)


_STARTING = Starting(
    programs=(("llama-server",),),
    # Context and slots are stated: a drafter has a cache as long as the target's, and without `-fit off` the
    # server would make room for it in silence.
    command=(
        *("llama-server", "-m", "{model}", "--host", "127.0.0.1", "--port", "{port}"),
        *("-c", "8192", "-np", "4", "-fit", "off"),
    ),
    model_flags=("-m", "--model", "-hf", "-hfr", "--hf-repo"),
    measured=(
        (("-cram", "0"), "a prompt that is asked at a second load is not in the cache"),
        (("--metrics",), "counters of tokens and drafts"),
    ),
    methods={
        # Without --spec-type a drafter is loaded and never asked, with no warning.
        "ngram": Method(
            spelled="ngram-simple",
            add=(
                *("--spec-type", "ngram-simple"),
                *("--spec-ngram-simple-size-n", "3", "--spec-ngram-simple-size-m", "8"),
            ),
        ),
        "draft_model": Method(
            spelled="draft-simple",
            add=("--spec-type", "draft-simple", "--spec-draft-n-max", "4", "-md", "{draft}"),
            needs_draft=True,
        ),
        "eagle3": Method(
            spelled="draft-eagle3",
            add=("--spec-type", "draft-eagle3", "--spec-draft-n-max", "4", "-md", "{draft}"),
            needs_draft=True,
        ),
        "mtp": Method(spelled="draft-mtp", add=("--spec-type", "draft-mtp", "--spec-draft-n-max", "2")),
    },
    alternative=("-b", "128", "-ub", "128"),
    alternative_keys=("batch_size", "ubatch_size"),
    placement="together",
    ready_s=300.0,
    peak=4,
)

LLAMACPP = EngineAdapter(
    starting=_STARTING,
    facts=EngineFacts(
        name="llamacpp",
        title="llama.cpp server",
        checked=(Release("b11434", "live"),),
        families=_FAMILIES,
        identity_paths=("/props", "/slots", "/v1/models"),
        environment_prefixes=("LLAMA_",),
        ready_paths=("/health",),
        # It ends a stream's connection although its headers promise to keep it; a request sent into that end
        # is lost.
        request_headers=(("Connection", "close"),),
        series=Series(
            spec_steps=(f"{_SPEC}_drafts_total",),
            draft_tokens=(f"{_SPEC}_draft_tokens_total",),
            accepted_tokens=(f"{_SPEC}_accepted_tokens_total",),
            accepted_by_position=(f"{_SPEC}_accepted_tokens_per_pos_total", "position"),
            generation_tokens=("llamacpp:tokens_predicted_total",),
            prompt_tokens=("llamacpp:prompt_tokens_total",),
            engine_steps=("llamacpp:n_decode_total",),
            running=("llamacpp:requests_processing",),
            waiting=("llamacpp:requests_deferred",),
        ),
        confounds=_CONFOUNDS,
        refuses=_REFUSES,
        lacks=_LACKS,
        fallback="a drafter that cannot be started is left out; the server runs on and only the log says",
        chunk_holds="token",
        device_lists=("device", "speculation.draft_device"),
    ),
    signals=_SIGNALS,
    vary=vary_llamacpp,
    lookup_stands_in=True,
    ask=_ask,
    read_blocks=read_timings,
    read_identity=_read_identity,
    read_context=read_context,
    read_flags=read_flags,
    read_log=_read_log,
    explain_off=_explain_off,
    explain_idle=_explain_idle,
    find_lossy=_find_lossy,
)
