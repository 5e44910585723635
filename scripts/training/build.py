"""The whole of `make drafters`: answers, three trainings, held-out acceptance, records."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import nn

from draftproof.reference.drafters.artefact import (
    DrafterRecord,
    Family,
    write_drafter,
    write_record,
)
from draftproof.reference.models.model import load_target
from draftproof.reference.types import EngineConfig
from training.answers import PLAN_NAME, CorpusPlan, corpus_digest, write_corpus
from training.attached import train_attached
from training.corpus import (
    count_tokens,
    coverage,
    frequent_tokens,
    load_corpus,
)
from training.fit import FitReport, Progress
from training.held_out import held_out_prompts, measure_acceptance
from training.identity import identify_target
from training.modules import AttachedModule, ExitModule, TrainedLayer
from training.plain import DraftModule, train_draft, train_exit
from training.teacher import Teacher, load_teacher

TAPS = (4, 8, 16, 30)
CORPUS = CorpusPlan(conversations=1300, templates=1000, max_tokens=176, taps=TAPS)
VOCAB_SIZE = 8192
HELD_BACK = 64  # examples kept out of the training, for the vocabulary's coverage
EXIT_COLUMN = 1
DRAFT_LAYERS = (0, 29)
SEED = 1
PROVENANCE = (
    "Trained by `make drafters` on answers the target itself gave to prompts it made up and to prompts from "
    "this project's templates; no other text was used. Output rows and embeddings are the target's own."
)
LICENCE = "Apache-2.0"
Tensors = dict[str, torch.Tensor]


class Workshop:
    """A target, its teacher and its corpus, ready to train drafters.

    Args:
        model_folder: the target's folder.
        work_folder: receives the corpus, which is used again if it is there.
        out_folder: receives one folder per drafter.
        tell: receives progress.
    """

    def __init__(self, model_folder: Path, work_folder: Path, out_folder: Path, tell: Progress) -> None:
        self._model_folder, self._work, self._out, self._tell = model_folder, work_folder, out_folder, tell
        self._prompts = held_out_prompts()
        if not any(work_folder.glob("shard*.pt")):
            target = load_target(EngineConfig(model_path=str(model_folder)))
            unseen = [text for texts in self._prompts.values() for text in texts]
            write_corpus(target, CORPUS, unseen, work_folder, tell)
        examples = load_corpus(work_folder)
        self._unseen, self._corpus = examples[:HELD_BACK], examples[HELD_BACK:]
        self._teacher: Teacher = load_teacher(model_folder)
        self._vocabulary = frequent_tokens(self._corpus, VOCAB_SIZE, self._special_tokens())
        tell(
            f"corpus: {count_tokens(self._corpus)} tokens of answers; the draft vocabulary covers "
            f"{coverage(self._unseen, self._vocabulary):.1%} of answers kept out"
        )

    def attached(self) -> None:
        """Train and write the attached head."""
        settings: dict[str, Any] = {"phases": [(4, 1), (1, 2)], "rate": 1e-3, "batch_tokens": 1500}
        columns = (1, 2, 3)
        module, reports = train_attached(
            self._corpus,
            self._teacher,
            self._vocabulary,
            columns=columns,
            seed=SEED,
            tell=self._tell,
            **settings,
        )
        self._write(
            attached_tensors(module),
            name="attached",
            family="attached",
            reads=[TAPS[column] for column in columns],
            layers=1,
            settings=settings,
            reports=reports,
        )

    def draft_model(self) -> None:
        """Train and write the draft model."""
        settings: dict[str, Any] = {
            "copied_layers": DRAFT_LAYERS,
            "epochs": 2,
            "rate": 1e-3,
            "batch_tokens": 2000,
        }
        module, report = train_draft(
            self._corpus, self._teacher, self._vocabulary, seed=SEED, tell=self._tell, **settings
        )
        self._write(
            draft_tensors(module),
            name="draft-model",
            family="draft_model",
            reads=(),
            layers=len(DRAFT_LAYERS),
            settings=settings,
            reports=[report],
        )

    def early_exit(self) -> None:
        """Train and write the early exit's adapter."""
        settings: dict[str, Any] = {"epochs": 2, "rate": 1e-3, "batch_tokens": 2000}
        module, report = train_exit(
            self._corpus,
            self._teacher,
            self._vocabulary,
            column=EXIT_COLUMN,
            seed=SEED,
            tell=self._tell,
            **settings,
        )
        self._write(
            exit_tensors(module),
            name="early-exit",
            family="self",
            reads=(TAPS[EXIT_COLUMN],),
            layers=0,
            settings=settings,
            reports=[report],
        )

    def _special_tokens(self) -> list[int]:
        ends = self._teacher.config.eos_token_id
        return [ends] if isinstance(ends, int) else list(ends)

    def _write(
        self,
        tensors: Mapping[str, torch.Tensor],
        *,
        name: str,
        family: Family,
        reads: Sequence[int],
        layers: int,
        settings: Mapping[str, Any],
        reports: Sequence[FitReport],
    ) -> None:
        stored = {key: tensor.detach().to(torch.bfloat16) for key, tensor in tensors.items()}
        stored["vocabulary"] = self._vocabulary.to(torch.int32)
        record = DrafterRecord(
            name=name,
            family=family,
            target=identify_target(
                self._model_folder,
                vocab_size=self._teacher.config.vocab_size,
                hidden_size=self._teacher.config.hidden_size,
            ),
            reads=tuple(reads),
            layers=layers,
            vocab_size=len(self._vocabulary),
            parameters=sum(tensor.numel() for tensor in tensors.values()),
            licence=LICENCE,
            provenance=PROVENANCE,
            corpus=self._describe_corpus(),
            training={**settings, "seed": SEED, "fits": [_describe(report) for report in reports]},
            weights_sha256="",
        )
        folder = self._out / name
        record = write_drafter(folder, record, stored)
        measured = measure_acceptance(self._model_folder, folder, family, self._prompts, self._tell)
        write_record(folder, msgspec.structs.replace(record, held_out=measured))

    def _describe_corpus(self) -> dict[str, Any]:
        plan = self._work / PLAN_NAME
        return {
            "texts": len(self._corpus),
            "answer_tokens": count_tokens(self._corpus),
            "sha256": corpus_digest(self._corpus),
            "draft_vocabulary_coverage": round(coverage(self._unseen, self._vocabulary), 4),
            "plan": json.loads(plan.read_text()) if plan.is_file() else None,
        }


def attached_tensors(module: AttachedModule) -> Tensors:
    """Return the head's tensors by the names the engine loads; the taps' scales are folded into `fuse`."""
    hidden = module.fuse.out_features
    return {
        "fuse": module.fuse.weight / module.scales.repeat_interleave(hidden),
        "state_norm": module.state_norm.weight,
        "embedding_norm": module.embedding_norm.weight,
        "mix": module.mix.weight,
        "final_norm": module.final_norm.weight,
        **_layer_tensors("layer.", module.layer),
    }


def draft_tensors(module: DraftModule) -> Tensors:
    """Return the draft model's tensors by the names the engine loads."""
    tensors: Tensors = {"final_norm": module.final_norm.weight}
    for index, layer in enumerate(module.layers):
        tensors |= _layer_tensors(f"layers.{index}.", layer)
    return tensors


def exit_tensors(module: ExitModule) -> Tensors:
    """Return the adapter's tensors by the names the engine loads."""
    return {
        "norm": module.norm.weight,
        "gate_up": module.gate_up.weight,
        "down": module.down.weight,
        "final_norm": module.final_norm.weight,
    }


def _layer_tensors(prefix: str, layer: TrainedLayer | nn.Module) -> Tensors:
    return {prefix + name.removesuffix(".weight"): tensor for name, tensor in layer.state_dict().items()}


def _describe(report: FitReport) -> dict[str, float]:
    return {"steps": report.steps, "seconds": round(report.seconds, 1), "loss": round(report.loss, 4)}
