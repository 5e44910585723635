"""A made-up manifest, with arms and contracts, that goes with the synthetic results.

Deterministic; the hashes are fixed text.
"""

from draftproof.core.manifests import ArmManifest, Contract, Manifest

DIGEST = "9f2c4e1ab77d03c5e8f6a4b1d20c9e7f5a3b8c6d1e0f42a7b9c8d7e6f5a4b3c2"
STARTED_WALL_NS = 1_767_945_600_000_000_000
_ARMS = ("baseline", "candidate", "alternative")


def build_manifest(*, name: str = "demo") -> Manifest:
    """The manifest of a run of three arms that differ in speculation and in batch size."""
    return Manifest(
        schema_version=1,
        draftproof_version="0.1.0",
        run_name=name,
        created_wall_ns=STARTED_WALL_NS,
        anchor_wall_ns=STARTED_WALL_NS,
        anchor_monotonic_ns=0,
        plan_sha256=DIGEST,
        thresholds_sha256=DIGEST[::-1],
        workload_sha256=DIGEST[8:] + DIGEST[:8],
        workload_name="starter",
        workload_version="1",
        evidence="synthetic",
        seed=1,
        host={"cpu": "x86-64, 2 cores", "memory_bytes": 16_642_998_272, "gpu": None, "system": "Linux 6.1"},
        arms=tuple(_arm_manifest(arm) for arm in _ARMS),
        contracts=tuple(_contract(arm) for arm in _ARMS),
    )


def _arm_manifest(arm: str) -> ArmManifest:
    settings: dict[str, str | int | float | bool | None] = {
        "dtype": "float32",
        "max_num_seqs": 16 if arm == "alternative" else 8,
        "speculation.method": "ngram" if arm == "candidate" else "off",
    }
    if arm == "candidate":
        settings |= {"speculation.num_spec_tokens": 5, "speculation.ngram_max": 3}
    return ArmManifest(
        arm=arm,
        engine="reference",
        engine_version="0.1.0",
        command=("draftproof", "serve", "--port", "8001"),
        url="http://127.0.0.1:8001",
        settings=settings,
        load_time_s=4.2,
        resident_bytes=1_181_116_006,
    )


def _contract(arm: str) -> Contract:
    drafts = arm == "candidate"
    return Contract(
        arm=arm,
        target_model="builtin:smollm2-135m-instruct",
        target_revision=None,
        target_precision="float32",
        target_licence="Apache-2.0",
        target_sha256=DIGEST,
        tokenizer_sha256=DIGEST[::-1],
        drafter_kind="ngram" if drafts else "none",
        drafter_identity="n-gram lookup in prompt and answer" if drafts else None,
        drafter_provenance="this project" if drafts else None,
        drafter_licence="Apache-2.0" if drafts else None,
        drafter_sha256=None,
        tokenizer_compatible=True if drafts else None,
        tokenizer_differences=(),
        runtime="reference",
        runtime_version="0.1.0",
        algorithm="exact rejection sampling" if drafts else "ordinary decoding",
        equivalence="guaranteed by method" if drafts else None,
        num_spec_tokens=5 if drafts else None,
        draft_policy=None,
        max_context_tokens=2048,
        max_output_tokens=512,
        unsupported_features=(),
        fallback="ordinary decoding",
    )
