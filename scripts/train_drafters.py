#!/usr/bin/env python3
"""Trains the drafters that ship with the package: answers of the target, then one training per family.

Everything is seeded and made from the demo's model and this project's own prompts. The corpus is kept in
the cache and used again; name families to train only some: scripts/train_drafters.py attached early_exit
draft_model
"""

import argparse
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("GOMP_SPINCOUNT", "5000")  # waiting threads stay awake between two products


def main() -> None:
    """Train what is named, everything by default."""
    families = ("attached", "draft_model", "early_exit")
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("families", nargs="*", help=f"out of {', '.join(families)}; all by default")
    parser.add_argument("--out", type=Path, help="where the drafters go (default: the package's data)")
    parser.add_argument("--corpus", type=Path, help="where the answers are kept (default: the cache)")
    parser.add_argument("--threads", type=int, help="threads of torch")
    options = parser.parse_args()
    unknown = set(options.families) - set(families)
    if unknown:
        parser.error(f"no such family: {', '.join(sorted(unknown))}; use {', '.join(families)}")

    import torch  # noqa: PLC0415 - seconds to import, and the environment is set first
    from training.build import Workshop  # noqa: PLC0415

    from draftproof.reference.drafters.artefact import builtin_folder  # noqa: PLC0415
    from draftproof.reference.weights.fetch import cache_dir, resolve_model  # noqa: PLC0415

    if options.threads:
        torch.set_num_threads(options.threads)
    begun = time.monotonic()

    def tell(line: str) -> None:
        sys.stdout.write(f"[{time.monotonic() - begun:6.0f} s] {line}\n")
        sys.stdout.flush()

    corpus = options.corpus or cache_dir() / "drafter-corpus"
    workshop = Workshop(resolve_model(None), corpus, options.out or builtin_folder(), tell)
    for family in options.families or families:
        getattr(workshop, family)()


if __name__ == "__main__":
    main()
