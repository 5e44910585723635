"""Builders of plans, manifests and model folders for the tests of the arms."""

import json
from pathlib import Path
from typing import Any

import msgspec

from draftproof.core.manifests import ArmManifest
from draftproof.plan.loading import parse_plan
from draftproof.plan.schema import Plan, Scalar
from draftproof.services.engines.reference import REFERENCE_ENGINE
from draftproof.workload.items import Item, Message

OFF: dict[str, Scalar | None] = {
    "speculation.method": "off",
    "speculation.num_spec_tokens": 4,
    "max_num_seqs": 8,
}
NGRAM = OFF | {"speculation.method": "ngram"}
ATTACHED = OFF | {
    "speculation.method": "attached",
    "speculation.policy": "auto",
    "drafter.attached": "attached",
    "drafter.attached.sha256": "f00d",
}


def plan(extra: str = "") -> Plan:
    return parse_plan(
        'name = "t"\n[[load]]\nname = "single"\nconcurrency = 1\n'
        '[arms.baseline.settings]\n"speculation.method" = "off"\n'
        '[arms.candidate.settings]\n"speculation.method" = "ngram"\n' + extra
    )


def manifest(arm: str = "baseline", settings: dict[str, Any] | None = None, **changes) -> ArmManifest:
    made = ArmManifest(
        arm=arm,
        engine=REFERENCE_ENGINE,
        engine_version="1",
        command=None,
        url=f"http://127.0.0.1/{arm}",
        settings=dict(OFF if settings is None else settings),
    )
    return msgspec.structs.replace(made, **changes)


def item(item_id: str = "a", text: str = "hello", **changes) -> Item:
    made = Item(id=item_id, messages=(Message(role="user", content=text),), segments={"task": "x"})
    return msgspec.structs.replace(made, **changes)


def tokenizer_json(vocab: dict[str, int], special: tuple[str, ...] = ("<s>",)) -> dict[str, Any]:
    added = [
        {
            "id": vocab[text], "content": text, "special": True, "single_word": False,
            "lstrip": False, "rstrip": False, "normalized": False,
        }
        for text in special
    ]  # fmt: skip
    return {
        "version": "1.0",
        "added_tokens": added,
        "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "<s>"},
    }


def model_folder(
    path: Path,
    vocab: dict[str, int] | None = None,
    config: dict[str, Any] | None = None,
    special: tuple[str, ...] = ("<s>",),
) -> Path:
    vocab = vocab or {"<s>": 0, "red": 1, "lamp": 2}
    path.mkdir(parents=True, exist_ok=True)
    (path / "tokenizer.json").write_text(json.dumps(tokenizer_json(vocab, special)))
    (path / "config.json").write_text(
        json.dumps(config or {"max_position_embeddings": 64, "eos_token_id": 0})
    )
    (path / "model.safetensors").write_bytes(b"weights")
    return path
