"""What a run and its arms were: facts written before the first request, which no report changes."""

from typing import Literal

import msgspec

from draftproof.core.records import ArmName, Outcome, TokenSource

_COUNTED_BY = {
    "token_ids": "token ids in every chunk",
    "continuous_usage": "usage at every chunk",
    "engine": "the engine's counter at every chunk",
    "tokenizer": "the target's tokenizer, after the run",
}


class ColdStart(msgspec.Struct, frozen=True, kw_only=True):
    """The first request that an arm answered after its start: a short greedy one, never averaged in."""

    outcome: Outcome
    ttft_ns: int | None
    e2e_ns: int | None


class Counting(msgspec.Struct, frozen=True, kw_only=True):
    """How an arm's answers are counted, by its answer to the test request.

    `asked` are the fields beyond the protocol that the service was asked for and accepted. `token_source` is
    None where no chunk is counted; `has_total` says whether the closing usage states the answer's tokens.
    """

    asked: tuple[str, ...] = ()
    token_source: TokenSource | None = None
    has_total: bool = False

    @property
    def text(self) -> str:
        """What counts the tokens, and which fields were accepted, in words."""
        total = "the closing usage alone" if self.has_total else "nothing"
        asked = f" (accepted: {', '.join(self.asked)})" if self.asked else ""
        return _COUNTED_BY.get(self.token_source or "", total) + asked


class ArmManifest(msgspec.Struct, frozen=True, kw_only=True):
    """What an arm was: the frozen configuration that may differ between arms only where declared.

    `settings` is flat: dotted key to a JSON scalar, e.g. {"speculation.method": "ngram"}. `command` is the
    launch command with its port; references to the environment stay references and secrets are masked.
    `platform` is what the service runs on: accelerator or cpu, driver, cuda, nccl, torch, engine_build and
    the like, each where the service or this host tells it.
    """

    arm: ArmName
    engine: str
    engine_version: str
    command: tuple[str, ...] | None
    url: str
    settings: dict[str, str | int | float | bool | None]
    load_time_s: float | None = None
    resident_bytes: int | None = None
    cold: ColdStart | None = None
    counting: Counting | None = None
    platform: dict[str, str] = {}


class Contract(msgspec.Struct, frozen=True, kw_only=True):
    """Compatibility contract of one arm (requirements B1-B9); unknown facts are None.

    `forced` are the differences from the baseline that the method forces, as the plan declares them;
    `topology` the devices of the arm and where its drafter runs.
    """

    arm: ArmName
    target_model: str
    target_revision: str | None
    target_precision: str | None
    target_licence: str | None
    target_sha256: str | None
    tokenizer_sha256: str | None
    drafter_kind: str
    drafter_identity: str | None
    drafter_provenance: str | None
    drafter_licence: str | None
    drafter_sha256: str | None
    tokenizer_compatible: bool | None
    tokenizer_differences: tuple[str, ...]
    runtime: str
    runtime_version: str
    algorithm: str
    equivalence: Literal["guaranteed by method", "tested", "assumed", "approximate"] | None
    num_spec_tokens: int | None
    draft_policy: str | None
    max_context_tokens: int | None
    max_output_tokens: int | None
    unsupported_features: tuple[str, ...]
    fallback: str
    confounds: tuple[str, ...] = ()
    forced: tuple[str, ...] = ()
    topology: str | None = None


EvidenceLevel = Literal["representative", "pilot", "synthetic", "smoke"]


class EarlierRuns(msgspec.Struct, frozen=True, kw_only=True):
    """Runs of the same question that began before in the same folder, and how many came to each decision.

    A run that has none is "not ended". `runs` is None where the ledger cannot be read.
    """

    runs: int | None
    decisions: dict[str, int] = {}


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about a run, written before the first request and never changed by a report.

    `references` is what each `${NAME}` of the plan stood for, secrets masked. `source_sha256` is over the
    Python files of the draftproof that measured (core/build.py), `folder` the name of the run's folder when
    it began, `earlier` what the ledger beside it says; None for runs from before they were noted.
    """

    schema_version: int
    draftproof_version: str
    run_name: str
    created_wall_ns: int
    anchor_wall_ns: int
    anchor_monotonic_ns: int
    plan_sha256: str
    thresholds_sha256: str
    workload_sha256: str
    workload_name: str
    workload_version: str
    evidence: EvidenceLevel
    seed: int
    host: dict[str, str | int | float | None]
    arms: tuple[ArmManifest, ...]
    contracts: tuple[Contract, ...]
    findings: tuple[str, ...] = ()
    source_sha256: str | None = None
    references: dict[str, str] = {}
    folder: str | None = None
    earlier: EarlierRuns | None = None
