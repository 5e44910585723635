"""What is known of an engine before it is asked: releases checked, names of its metrics, what it changes.

Pure data. A fact that a release lacks is simply not found; nothing here is a promise about a release that is
not listed as checked. A signal of an arm in operation that an engine lacks is None and stands in `missing`
with the reason.
"""

import math
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Literal, NamedTuple

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


Settings = dict[str, str | int | float | bool | None]
Family = Literal["ngram", "draft_model", "attached", "self"]
# Names of settings that every engine's are called by; a method of "off" says that nothing drafts.
METHOD, OFF = "speculation.method", "off"
DRAFT_LENGTH, DRAFTER = "speculation.num_spec_tokens", "drafter"
# Settings below it say what a service runs on; a manifest keeps them apart.
PLATFORM = "platform."
SMALLER_CHUNKS = "prompts enter in smaller chunks"
HowChecked = Literal["live", "source", "documentation"]


class Release(msgspec.Struct, frozen=True):
    """A release that the adapter was checked against: the start of its version, and how it was checked."""

    version: str
    how: HowChecked


class Confound(msgspec.Struct, frozen=True, kw_only=True):
    """Something besides the drafts that changes when speculation is switched on.

    `settings` are the keys of a manifest that show it, where any does. `forces` are those that the method
    sets by itself, with the value that it sets (None: one of its own choice); a plan declares them in
    `comparison.forced_by_method`. `pin` says how to hold it still: of what a method forces in a copy of the
    baseline only, for the baseline itself is today's service. `methods` limits it to some methods as the
    engine spells them; empty: all.
    """

    text: str
    settings: tuple[str, ...] = ()
    forces: Settings = {}
    pin: str | None = None
    methods: tuple[str, ...] = ()


class Feature(msgspec.Struct, frozen=True, kw_only=True):
    """Something that a request may ask for and an engine does not give.

    Attributes:
        text: the feature and what becomes of it, a phrase for people.
        fields: the fields of a request that ask for it; one that ends in "." stands for all that begin so.
            Empty: no request asks for it.
        methods: the methods it is limited to, as the engine spells them; empty: all.
        at_most: how many values of a list are taken all the same.
        at_most_setting: the setting in which a service states another number.
        is_inexact: whether the request is served and the answer is not quite the target's; else it is refused
            or ignored.
    """

    text: str
    fields: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    at_most: int = 0
    at_most_setting: str | None = None
    is_inexact: bool = False


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """Sample names of an engine's Prometheus metrics, by quantity.

    A name may carry labels, `name{label="value"}`, that a series must have; further labels are summed over.
    Of several names the first that is present counts: releases rename things. The parts of `draft_seconds`
    and of `verify_seconds` are summed instead. `accepted_by_position` and `drafted_by_position` are a name
    and the label that holds the position, counted from 0. `prefix_queries` are prompt tokens looked up in the
    prefix cache, `prefix_hits` those found there.
    """

    spec_steps: tuple[str, ...] = ()
    draft_tokens: tuple[str, ...] = ()
    accepted_tokens: tuple[str, ...] = ()
    accepted_by_position: tuple[str, str] | None = None
    drafted_by_position: tuple[str, str] | None = None
    generation_tokens: tuple[str, ...] = ()
    prompt_tokens: tuple[str, ...] = ()
    finished_requests: tuple[str, ...] = ()
    engine_steps: tuple[str, ...] = ()
    preemptions: tuple[str, ...] = ()
    prefix_queries: tuple[str, ...] = ()
    prefix_hits: tuple[str, ...] = ()
    running: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    cache_usage: tuple[str, ...] = ()
    draft_seconds: tuple[str, ...] = ()
    verify_seconds: tuple[str, ...] = ()


def resolve_alias(method: str, aliases: Mapping[str, str]) -> str:
    """Return the name that aliases give a method, the method itself where none fits."""
    found = (name for pattern, name in aliases.items() if fnmatchcase(method, pattern))
    return next(found, method)


class Method(msgspec.Struct, frozen=True, kw_only=True):
    """How an engine is told to draft: words behind its command, in which `{draft}` stands for the drafter.

    `spelled` is the engine's own name of the method. `settings` are those of an engine without a command.
    `needs_draft`: it takes a drafter of its own. `note`: what else is to be done, a line each.
    """

    spelled: str
    add: tuple[str, ...] = ()
    settings: Settings = {}
    needs_draft: bool = False
    note: tuple[str, ...] = ()


class Starting(msgspec.Struct, frozen=True, kw_only=True):
    """How a service of an engine is started and measured: what a new plan is made from.

    Attributes:
        programs: words with which a command of this engine begins, one tuple for each spelling.
        command: that of a new plan where nobody gives one; `{model}` and `{port}` are replaced.
        model_flags: flags that name the model; where none is given it is the word behind the program.
        own_model: the model of a command that names none, None where it must.
        port_flags: flags that name the port, the usual one first.
        host_flag: the flag for the address to listen at.
        measured: flags that a measurement adds to every arm, with the reason. One whose name the command has
            already, as it is or negated, is left out.
        measured_drafting: flags that it adds to an arm that drafts.
        env: variables of every arm.
        methods: what `init` calls a method -> how it is asked for; the first is the default.
        alternative: the words, or variables, that spend the same budget without drafts.
        alternative_keys: settings in which that arm then differs.
        alternative_why: what it does, in a phrase.
        placement: whether arms run together or one at a time on an accelerator.
        ready_s: how long a large model may load.
        peak: requests in flight of the intended peak of a new plan.
    """

    programs: tuple[tuple[str, ...], ...] = ()
    command: tuple[str, ...] = ()
    model_flags: tuple[str, ...] = ()
    own_model: str | None = None
    port_flags: tuple[str, ...] = ("--port",)
    host_flag: str = "--host"
    measured: tuple[tuple[tuple[str, ...], str], ...] = ()
    measured_drafting: tuple[str, ...] = ()
    env: dict[str, str] = {}
    settings: Settings = {}
    methods: dict[str, Method] = {}
    alternative: tuple[str, ...] = ()
    alternative_settings: Settings = {}
    alternative_keys: tuple[str, ...] = ()
    alternative_why: str = SMALLER_CHUNKS
    placement: Literal["together", "one_at_a_time"] = "one_at_a_time"
    ready_s: float = 900.0
    peak: int = 16


class EngineFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of one engine.

    Attributes:
        name: the engine's name in a plan.
        checked: releases the adapter was checked against.
        families: method, as the engine spells it, to the proposal family it belongs to.
        aliases: other spellings of a method, with * for any letters, to the one the engine maps them to.
        identity_paths: addresses below the base whose answers `read_identity` reads.
        ready_paths: asked in order until one exists; 200 there means ready.
        environment_prefixes: how the variables begin that the engine reads from its environment.
        request_headers: headers of every request beside those of the plan.
        metrics_path: address of the Prometheus exposition; "" where none is known.
        refuses: request features that are refused, ignored or wrong while speculation is on.
        lacks: request features that the engine never has.
        request_fields: fields of its chat requests beyond those that an item has keys of its own for; others
            are ignored in silence. Empty: not known, or it refuses others itself.
        pausing: settings that let a policy pause drafting by design, key -> the values that do; empty: any
            but off.
        fallback: what happens when the drafter fails or is absent.
        chunk_holds: what one content chunk of the stream carries.
        device_factors: settings whose product is the number of devices of a service.
        inner_factors: factor -> the setting with which it lies within the others and multiplies nothing.
        device_lists: settings that list devices, whose names together are those of the service.
        states_all: whether a service states every setting itself, so that no word of its command is one.
        is_exact: whether this project's own tests show that every method's drafts are verified without any
            change of the distribution; of an engine that only says so it is an assumption.
    """

    name: str
    title: str
    checked: tuple[Release, ...] = ()
    families: dict[str, Family] = {}
    aliases: dict[str, str] = {}
    identity_paths: tuple[str, ...] = ("/version",)
    ready_paths: tuple[str, ...] = ("/health", "/v1/models")
    environment_prefixes: tuple[str, ...] = ()
    request_headers: tuple[tuple[str, str], ...] = ()
    metrics_path: str = "/metrics"
    series: Series = Series()
    confounds: tuple[Confound, ...] = ()
    refuses: tuple[Feature, ...] = ()
    lacks: tuple[Feature, ...] = ()
    request_fields: frozenset[str] = frozenset()
    pausing: dict[str, tuple[str, ...]] = {}
    fallback: str = "unknown"
    chunk_holds: Literal["step", "token", "unknown"] = "unknown"
    device_factors: tuple[str, ...] = ()
    inner_factors: dict[str, str] = {}
    device_lists: tuple[str, ...] = ()
    states_all: bool = False
    is_exact: bool = False

    def name_method(self, method: str) -> str:
        """Return a method under the name that the engine itself maps it to."""
        return resolve_alias(method, self.aliases)

    def name_pausing_policy(self, settings: Settings) -> str | None:
        """Return the setting in force that lets drafting pause, as "key = value", None where none does."""
        for key, values in self.pausing.items():
            value = settings.get(key)
            if value in values if values else value not in {None, False, "", "off"}:
                return f"{key} = {value}"
        return None

    def count_devices(self, settings: Settings) -> int | None:
        """Return the devices that a service takes by its settings, None where they do not tell."""
        listed = [text for key in self.device_lists if isinstance(text := settings.get(key), str)]
        names = {name.strip() for text in listed for name in text.split(",")} - {"", "none"}
        if names:
            return len(names)
        factors = [
            value
            for key in self.device_factors
            if isinstance(value := settings.get(key), int)
            and settings.get(self.inner_factors.get(key, "")) is not True
        ]
        return math.prod(factors) if factors else None

    def find_release(self, version: str) -> Release | None:
        """Return the checked release that `version` belongs to, None for one that was never checked.

        "0.32" covers 0.32, 0.32.1 and 0.32.0+cpu, and not 0.321.
        """
        bare = version.removeprefix("v")
        for release in self.checked:
            rest = bare.removeprefix(release.version)
            if rest != bare and not rest[:1].isdigit():
                return release
        return None


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """What a running service says of itself; None and empty where it says nothing.

    `engine` is the name it gives itself. `settings` is flat, with `speculation.method` ("off" where the
    service is known not to speculate), `speculation.num_spec_tokens` and `max_model_len` where disclosed.
    Keys below `capacity.` are what the service made of its settings, such as the blocks of its cache: they
    are shown beside each other and never stop a comparison.
    """

    engine: str | None = None
    version: str | None = None
    settings: Settings = {}
