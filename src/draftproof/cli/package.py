"""`draftproof package`: a run as one archive for another team."""

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from draftproof.cli.console import JsonOption, console_progress, print_either
from draftproof.core.errors import UsageError

if TYPE_CHECKING:
    from draftproof.tell.handover.packing import Packed

_LARGEST_SALT = 1 << 16


def package(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.", show_default=False)],
    out: Annotated[
        Path | None, typer.Option("--out", help="Archive to write.", show_default="RUN.tar")
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option(
            "--key",
            help="Sign with this Ed25519 private key (PEM or OpenSSH); its passphrase is taken from "
            "$DRAFTPROOF_KEY_PASSPHRASE.",
            show_default=False,
        ),
    ] = None,
    salt: Annotated[
        Path | None,
        typer.Option("--salt", help="File with 16 secret bytes or more, for --withhold.", show_default=False),
    ] = None,
    allow_secret_like: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-secret-like",
            metavar="FILE:LINE",
            help="A place that looks like a secret and is none; may be given again.",
            show_default=False,
        ),
    ] = None,
    *,
    withhold: Annotated[
        bool, typer.Option("--withhold", help="Replace prompts and outputs by salted digests.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Pack a run for another team: raw data, results, contract, bill of materials, hashes, signature.

    The same run gives the same bytes on any machine. Refused where anything in it looks like a secret (2), or
    where results.json is not what the records give (40).
    """
    from draftproof.tell.handover.packing import PackOptions, pack_run  # noqa: PLC0415
    from draftproof.tell.handover.signing import PASSPHRASE_VARIABLE  # noqa: PLC0415

    if withhold != (salt is not None):
        raise UsageError(
            "--withhold and --salt go together.", fix="head -c 32 /dev/urandom > salt, then --salt salt"
        )
    options = PackOptions(
        key=key,
        passphrase=os.environ.get(PASSPHRASE_VARIABLE),
        salt=None if salt is None else _read_salt(salt),
        allowed=tuple(allow_secret_like or ()),
    )
    with console_progress() as progress:
        progress.phase("Computing the run again and packing it")
        packed = pack_run(run, out or Path(f"{run.resolve().name}.tar"), options)
    print_either(packed, partial(_describe, packed), as_json=as_json)


def _describe(packed: "Packed") -> str:
    lines = [
        f"Packed: {packed.archive} ({packed.members} files, {packed.size:,} bytes)",
        f"Verdict: {packed.decision}",
        f"SHA-256: {packed.sha256}",
    ]
    if packed.signature is not None:
        lines.append(f"Signature: {packed.signature}")
    return "\n".join([*lines, *(f"Note: {text}" for text in packed.notes)])


def _read_salt(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_LARGEST_SALT)
    except OSError as error:
        raise UsageError(f"the salt cannot be read ({error.strerror}).", place=str(path)) from error
