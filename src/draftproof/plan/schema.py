"""Schema of a plan file (TOML). Unknown keys are errors; every default is what the report will show.

Owns the shape and the ranges only. Reading, hashing and expansion live in `loading.py`.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from draftproof.core.manifests import EvidenceLevel
from draftproof.plan.load import Knee, LoadLevel, RecordedWindow
from draftproof.plan.tables import (
    Approval,
    Flag,
    Judge,
    Name,
    Number,
    Prices,
    Ratio,
    Rollback,
    Share,
    Version,
    Whole,
    Words,
)
from draftproof.plan.tables import Strict as _Strict

Scalar = str | int | float | bool


class Target(_Strict):
    """The frozen target model, the same in every arm."""

    model: str = Field(
        "builtin:smollm2-135m-instruct",
        description="A local Hugging Face folder, a GGUF file, a model id, or builtin:smollm2-135m-instruct; "
        "a path is taken from the plan's folder.",
    )
    revision: str | None = Field(None, description="Revision of the weights, where the source has one.")
    dtype: Literal["float32", "bfloat16"] | None = Field(
        None,
        description="Precision in which the reference engine computes; none: float32. Other engines have it "
        "in their own command, and the report shows what a service states.",
    )
    licence: str | None = Field(None, description="Licence of the weights (SPDX id where there is one).")
    tokenizer: str | None = Field(
        None,
        description="A tokenizer.json, or a folder with one, that counts tokens after the run where no "
        "service reports them; a path is taken from the plan's folder. None: that of the folder "
        "`model`, if it has one.",
    )


class WorkloadChoice(_Strict):
    """Which items are asked, and which segment dimensions form the cells of the verdict."""

    path: str = Field(
        "builtin:starter",
        description="A JSONL file (docs/workloads.md), a trace (docs/load.md), either of them packed with "
        "gzip or as a Parquet table, or builtin:starter.",
    )
    window: RecordedWindow | None = None
    timestamp_unit: Literal["s", "ms", "us", "ns"] | None = Field(
        None,
        description="Unit of a recording's `timestamp`, where it is a bare number and its unit is not clear "
        "(docs/load.md).",
    )
    block_tokens: Whole | None = Field(
        None,
        ge=1,
        le=1_000_000,
        description="Tokens of the prompt for each entry of a trace's `hash_ids`, where its lengths do not "
        "show it.",
    )
    where: dict[str, list[str]] = Field(
        default_factory=dict, description="Keep items whose segment label is in the list, by dimension."
    )
    segment_by: tuple[str, ...] = Field(("task",), min_length=1, description="Dimensions that form cells.")
    items_per_segment: Whole | None = Field(
        None, ge=1, description="Most items of each segment, chosen by the seed; none: all."
    )
    max_tokens: Whole | None = Field(
        None, ge=1, description="Caps the items' own limit, the same in every arm."
    )


EngineName = Literal["reference", "vllm", "sglang", "tensorrt-llm", "llamacpp", "tgi", "generic"]


class Engine(_Strict):
    """Today's service, the default of every arm. The baseline is exactly this.

    An arm's `env`, `headers`, `request` and `settings` are added key by key; any other key of an arm
    replaces the one here. An arm with a `url` takes no command from here, one with a command no `url`.
    """

    name: EngineName = Field(
        "reference",
        description="Which adapter reads its answers; generic is any OpenAI-compatible service.",
    )
    url: str | None = Field(None, description="As `arms.baseline.url`.")
    command: Words | None = Field(
        None, description="As `arms.baseline.command`; one string is split as a shell would."
    )
    env: dict[str, str] = Field(default_factory=dict, description="As `arms.baseline.env`.")
    headers: dict[str, str] = Field(default_factory=dict, description="As `arms.baseline.headers`.")
    request: dict[str, Scalar] = Field(default_factory=dict, description="As `arms.baseline.request`.")
    metrics_urls: tuple[str, ...] = Field((), description="As `arms.baseline.metrics_urls`.")
    served_model: str | None = Field(None, description="As `arms.baseline.served_model`.")
    settings: dict[str, Scalar] = Field(default_factory=dict, description="As `arms.baseline.settings`.")
    devices: Whole = Field(1, ge=1, le=100_000, description="As `arms.baseline.devices`.")


class Arm(_Strict):
    """One service under test. With `url` it is attached to, else it is started and stopped by the run."""

    engine: EngineName = Field(
        "reference",
        description="Which adapter reads its answers; generic is any OpenAI-compatible service.",
    )
    url: str | None = Field(
        None, description="Base address of a service that runs already, e.g. http://127.0.0.1:8000."
    )
    command: Words | None = Field(
        None,
        description="Launch command, run without a shell; {port} and {model} are replaced, ${NAME} is taken "
        "from the environment. Paths in it are taken from the folder in which draftproof runs, not from the "
        "plan's. One string is split as a shell would. None: made from `settings` (reference engine).",
    )
    add: Words = Field(
        (),
        exclude=True,
        description="Words appended to the command; a flag that the command already has is replaced.",
    )
    env: dict[str, str] = Field(
        default_factory=dict,
        description="Environment variables of the launched command, added to this program's own; ${NAME} is "
        "taken from there, paths are passed on unchanged.",
    )
    headers: dict[str, str] = Field(
        default_factory=dict,
        description="Headers of every request; write a key as ${NAME}, it is taken from the environment and "
        "never stored.",
    )
    request: dict[str, Scalar] = Field(
        default_factory=dict, description="Further fields of every request, the same in every arm by default."
    )
    metrics_urls: tuple[str, ...] = Field(
        (),
        description="Addresses of Prometheus metrics, one for each replica; "
        "none: the engine's usual path below the arm's address.",
    )
    served_model: str | None = Field(
        None, description="Model name sent in requests; none: the first the service lists."
    )
    settings: dict[str, Scalar] = Field(
        default_factory=dict,
        description="Dotted settings, e.g. speculation.method = 'ngram'; arms differ only where declared. A "
        "launched reference engine looks for `drafter` in the plan's folder first.",
    )
    devices: Whole = Field(
        1,
        ge=1,
        le=100_000,
        description="Devices in the arm's budget, including one that hosts a drafter; each is a cost. Arms "
        "with different numbers are compared only with comparison.unequal_budgets.",
    )
    drafter_devices: Whole = Field(
        0,
        ge=0,
        le=100_000,
        description="Of `devices`, those that host the drafter and nothing else; 0: it shares the target's.",
    )
    drafter: dict[str, str] = Field(
        default_factory=dict,
        description="Facts of the drafter for the contract: identity, provenance, licence, path; the rest is "
        "what the service states.",
    )

    @model_validator(mode="after")
    def _words_found_a_command(self) -> Self:
        if self.add:
            raise ValueError("add has no command to add to; state engine.command, or a command here")
        return self

    @model_validator(mode="after")
    def _target_has_a_device(self) -> Self:
        if self.drafter_devices >= self.devices:
            raise ValueError(
                f"drafter_devices is {self.drafter_devices} of {self.devices} devices: the target needs one"
            )
        return self


class Arms(_Strict):
    """Today's service, one speculation strategy as the only change, and an equal budget spent otherwise."""

    baseline: Arm
    candidate: Arm
    alternative: Arm | None = None


class ForcedByMethod(_Strict):
    """Settings that an arm's method changes by itself, with the reason; the change is charged to the arm."""

    candidate: dict[str, str] = Field(
        default_factory=dict,
        description="What the candidate's method forces, key -> why, such as async_scheduling = \"n-gram "
        "lookup rules it out\". The baseline keeps today's value; a key covers those below it.",
    )
    alternative: dict[str, str] = Field(
        default_factory=dict, description="The same for an alternative that drafts."
    )


class Comparison(_Strict):
    """How arms are compared. Fixed before anything is measured."""

    candidate_may_differ: tuple[str, ...] = Field(
        (
            "speculation.method",
            "speculation.policy",
            "speculation.stop_below",
            "speculation.num_spec_tokens",
            "speculation.ngram_min",
            "speculation.ngram_max",
            "speculation.ngram_shared_tokens",  # runs of earlier releases state it
            "drafter",
        ),
        description="Setting keys in which the candidate may differ from the baseline; "
        "a key covers those below it.",
    )
    alternative_may_differ: tuple[str, ...] = Field(
        (), description="Setting keys in which the alternative may differ; a key covers those below it."
    )
    forced_by_method: ForcedByMethod = ForcedByMethod()
    unequal_budgets: Flag = Field(
        False,
        description="Compare arms with different numbers of devices. A gain then also needs less device time "
        "per output token: a faster answer on more devices alone is no gain.",
    )
    null_arm: Flag = Field(
        True, description="Run the baseline twice to see how much two equal services differ."
    )
    metric: Literal["tpot_ns", "e2e_from_schedule_ns"] = Field(
        "tpot_ns", description="The per-request quantity that decides gain or harm."
    )
    statistic: Literal["mean", "p50"] = Field("mean", description="The statistic whose ratio is the effect.")
    confidence: Annotated[Number, Field(ge=0.8, le=0.999)] = Field(0.95, description="Family-wise coverage.")
    resamples: Whole = Field(2000, ge=200, le=100_000, description="Bootstrap resamples.")
    minimum_prompts: Whole = Field(
        6, ge=3, description="Fewest distinct prompts that a cell needs for an interval."
    )
    quality: Literal["agreement", "checks", "latency_only"] = Field(
        "agreement",
        description="What shows that answers are as good. agreement: checks; a greedy item without one is "
        "compared with the baseline's answer, and the candidate's may differ from it as often as "
        "the null arm's does and quality_margin more. checks: checks alone. latency_only: quality"
        " is not compared, and the verdict says so first.",
    )
    cluster_by: str | None = Field(
        None,
        description="Segment dimension whose prompts are correlated (a topic, a document, a user): intervals "
        "and minimum_prompts then count its labels as clusters. None: every prompt is its own "
        "cluster.",
    )


class Thresholds(_Strict):
    """Acceptance criteria, hashed into the run before the first request."""

    minimum_gain: Ratio = Field(
        0.05, description="A gain must beat this: whole interval of the ratio below 1 − this."
    )
    harm_margin: Ratio = Field(0.05, description="Harm: whole interval of the ratio above 1 + this.")
    ttft_margin: Annotated[Number, Field(gt=0.0, le=5.0)] = Field(
        0.25,
        description="Time to first token (from when the request was due) may grow by at most this share.",
    )
    e2e_margin: Ratio = Field(0.10, description="End-to-end time may grow by at most this share.")
    tail_quantile: Literal["p90", "p95", "p99"] = Field(
        "p95", description="The quantile over requests that defines the tail."
    )
    tail_margin: Annotated[Number, Field(gt=0.0, le=5.0)] = Field(
        0.25,
        description="Time per token and time to first token at that quantile may grow by at most this share. "
        "With representative evidence a gain is withheld where this is not shown; with other "
        "evidence it is reported as not shown.",
    )
    failure_margin: Share = Field(0.02, description="Share of failed requests may grow by at most this.")
    quality_margin: Share = Field(0.10, description="Share of passed checks may fall by at most this.")
    output_length_margin: Ratio = Field(
        0.10, description="Mean output length may shift by at most this share."
    )
    token_limit_margin: Share = Field(
        0.10,
        description="Share of answers that end at the token limit may change by at most this, either way; "
        "beyond it no gain is claimed, since a truncated answer lacks its end, which may be slow."
        " The default takes as many prompts to show as that of quality_margin.",
    )
    dominated_margin: Ratio = Field(
        0.05, description="The alternative dominates where it is better than the candidate by more than this."
    )
    critical_errors: Whole = Field(
        0,
        ge=0,
        description="New failures of checks marked critical that the candidate may show per load level.",
    )


class Objectives(_Strict):
    """Deadlines a request must meet to be on time; None is no objective."""

    ttft_ms: Annotated[Number, Field(gt=0)] | None = Field(
        None, description="Longest time to first token, from when the request was due."
    )
    tpot_ms: Annotated[Number, Field(gt=0)] | None = Field(
        None, description="Longest time per output token after the first."
    )
    e2e_ms: Annotated[Number, Field(gt=0)] | None = Field(
        None, description="Longest end-to-end time, from when the request was due."
    )


class Limits(_Strict):
    """Timeouts, warm-up, repeats, and limits of the load client itself."""

    ready_s: Number = Field(300.0, gt=0, description="Wait for a service to become ready.")
    request_s: Number = Field(120.0, gt=0, description="Longest time of one request.")
    stop_s: Number = Field(15.0, gt=0, description="Wait for a clean stop before killing.")
    warmup_requests: Whole = Field(
        2,
        ge=0,
        le=10_000,
        description="Fewest requests that warm an arm up at a level after each start; 0: none. More follow, "
        "in groups of this size (or of the level's concurrency), until two successive groups "
        "agree.",
    )
    warmup_tolerance: Annotated[Number, Field(gt=0.0, le=1.0)] = Field(
        0.1,
        description="Two groups agree when the medians of time per token and of time to first token differ by"
        " at most this share.",
    )
    warmup_max_s: Number = Field(
        60.0, gt=0, description="No further group begins after this time; the report then warns."
    )
    restarts: Literal["auto"] | Annotated[Whole, Field(ge=0, le=10_000)] = Field(
        "auto",
        description="How often the arms that the run starts are restarted between blocks, spread over the "
        "run; 0: never. auto: before each block of a load that the running processes have already"
        " answered, while starts and warm-ups take at most a quarter of the run's time. With "
        'placement = "one_at_a_time" an arm is restarted for its periods in any case.',
    )
    repeat_disturbed: Flag = Field(
        True,
        description="Measure a period a second time, right after its block, where the host disturbed it "
        "(other programs, stolen CPU time, a late client, sleep, throttling; never the arm's own "
        "times): at most a fifth of a load's periods. Periods disturbed both times are left out "
        "of all times, if they are at most a fifth.",
    )
    ramp_up_max_s: Number = Field(
        30.0,
        gt=0,
        le=1e9,
        description="Longest ramp-up of an open loop before its counted requests. 16 mean request times are "
        "wanted; the report warns where this limit cuts them short.",
    )
    stall_ms: Number = Field(200.0, gt=0, description="A gap between chunks above this is a stall.")
    sample_s: Number = Field(
        1.0,
        ge=0.001,
        le=1e9,
        description="Time between two readings of a service's metrics during its period.",
    )
    client_lag_ms: Number = Field(
        50.0,
        gt=0,
        description="Delay of the event loop, pause of garbage collection or delay of sending (p99) above "
        "which a period's client is unfit (invalid_client). It is also unfit where its delay is "
        "part of the measured times and more than a fifth of minimum_gain of them.",
    )
    workers: Whole = Field(
        1,
        ge=1,
        le=64,
        description="Load processes that share each period; 1: the load runs in the program itself. "
        "More than "
        "one where a single core is too little for the load (docs/workers.md).",
    )
    ray: str | None = Field(
        None,
        pattern=r"^(auto|(ray://)?[^\s:/]+:\d{1,5})$",
        description="Ray cluster on whose nodes the load workers run: auto (the one that this host is part "
        "of), head:6379 or ray://head:10001. None: they are processes of this host.",
    )
    behaviour_probes: Flag = Field(
        True,
        description="Send each arm, outside its measured periods, a few requests that test stop strings, "
        "limits, tool calls, schemas, streaming and cancellation. A refused request counts as "
        "unsupported.",
    )


class Sequential(_Strict):
    """A run that goes on until it knows: each load ends where an interim analysis settles its cells."""

    analyses: Whole = Field(
        3,
        ge=2,
        le=8,
        description="Interim analyses of a load, evenly spread over its blocks: the first after half, "
        "never before as many as a gain takes, the last after all. Their number and times are fixed here, so "
        "each interval holds at all of them together.",
    )
    spending: Literal["obrien_fleming", "pocock"] = Field(
        "obrien_fleming",
        description="How the error of each interval is spent over the analyses (Lan and DeMets): hardly any "
        "of it early, or about evenly.",
    )
    futility: Annotated[Number, Field(ge=0.0, le=0.5)] = Field(
        0.05,
        description="A cell is closed, undecided, where the chance that all blocks of the plan settle it is "
        "below this; 0: never.",
    )
    budget_min: Number | None = Field(
        None,
        gt=0,
        description="Minutes after which no load begins another block once it has the blocks of its first "
        "analysis. None: as long as it takes.",
    )

    def list_points(self, planned: int, least: int) -> tuple[int, ...]:
        """Return after how many of its `planned` blocks a load is analysed; `least`: what a gain takes."""
        first = min(planned, max(least, -(-planned // 2)))
        step = (planned - first) / (self.analyses - 1)
        return tuple(dict.fromkeys(round(first + step * number) for number in range(self.analyses)))


class Plan(_Strict):
    """A whole plan file."""

    schema_version: Version = Field(1, description="Version of this format.")
    name: Name = Field(description="Name of the plan and of its runs.")
    question: str = Field("", description="What the reader wants to know, in one sentence.")
    placement: Literal["together", "one_at_a_time"] = Field(
        "together",
        description="together: all arms run side by side. one_at_a_time: only the arm that is being measured "
        "runs, for arms that need the whole device each; every change of arm is a restart.",
    )
    evidence: EvidenceLevel = Field(
        "synthetic",
        description="representative: a fair sample of the traffic that the decision is about. pilot: real "
        "requests, too few for what representative evidence must show. synthetic: prompts that were written "
        "for the test or invented. smoke: any that show the path. All but representative evidence end in a "
        "pilot hypothesis.",
    )
    seed: Whole = Field(
        1, ge=0, le=2**32 - 1, description="Seed of what is drawn: orders, arrivals, chosen items, resamples."
    )
    target: Target = Target()
    workload: WorkloadChoice = WorkloadChoice()
    load: tuple[LoadLevel, ...] = Field(min_length=1)
    engine: Engine | None = Field(None, exclude=True)
    arms: Arms
    comparison: Comparison = Comparison()
    thresholds: Thresholds = Thresholds()
    objectives: Objectives = Objectives()
    limits: Limits = Limits()
    rollback: Rollback = Rollback()
    approval: Approval = Approval()
    prices: Prices = Prices()
    judge: Judge | None = None
    knee: Knee | None = None
    sequential: Sequential | None = None

    @property
    def last_arms(self) -> tuple[str, ...]:
        """The arms whose period in a block comes last: a null arm that asks the baseline's own service.

        In the baseline's periods that service then knows of a block's prompts what the candidate's knows, and
        not what the null arm has asked. One that is started for the null arm takes any period.
        """
        is_shared = self.comparison.null_arm and self.arms.baseline.url is not None
        return ("baseline_null",) if is_shared else ()

    @model_validator(mode="after")
    def _levels_are_distinct(self) -> Self:
        names = [level.name for level in self.load]
        if len(set(names)) != len(names):
            raise ValueError(f"load level names must differ, got {names}")
        return self

    @model_validator(mode="after")
    def _knee_can_be_found(self) -> Self:
        if self.knee is not None:
            self.knee.check(
                has_deadline=any(limit is not None for limit in self.objectives.model_dump().values()),
                levels=tuple(level.name for level in self.load),
                confidence=self.comparison.confidence,
            )
        return self
