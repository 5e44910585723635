"""Detached signatures: Ed25519 with a key that the user brings (RFC 8032, by the package `cryptography`).

What is signed is a context line and the SHA-256 of the whole archive, so that a signature made for a package
can never pass for one made for something else. A signature file is text:

    draftproof package signature v1
    ed25519 <public key, base64>
    <signature, base64>

The public key in it is a convenience for the reader's eye: a package is authentic only by a key known before.

Packages of the extra `handover`, imported where they are used: a check of hashes needs none of them.
"""

import base64
import binascii
import importlib
import os
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import msgspec

from draftproof.core.errors import NotVerifiedError, UsageError


def load_extra(module: str) -> ModuleType:
    """Import a module of the extra. Raises UsageError: the extra is not installed."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise UsageError(
            f"this needs the package {module.partition('.')[0]}.",
            fix='install it with: pip install "draftproof[handover]"',
        ) from error


CONTEXT: Final = "draftproof package signature v1"
ALGORITHM: Final = "ed25519"
PASSPHRASE_VARIABLE = "DRAFTPROOF_KEY_PASSPHRASE"  # noqa: S105 - a name, no password
_KEY_BYTES, _SIGNATURE_BYTES = 32, 64
_LARGEST_KEY_FILE = 1 << 16


class Signature(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed signature file: raw public key and raw signature."""

    public_key: bytes
    signature: bytes


def signature_path(archive: Path) -> Path:
    """Return where the signature of an archive lies."""
    return archive.with_name(archive.name + ".sig")


def make_message(archive_sha256: str) -> bytes:
    """Return the bytes that are signed."""
    return f"{CONTEXT}\n{archive_sha256}\n".encode("ascii")


def sign(archive_sha256: str, key: Any) -> bytes:
    """Return the signature file of an archive."""
    return render_signature(
        Signature(
            public_key=key.public_key().public_bytes_raw(),
            signature=key.sign(make_message(archive_sha256)),
        )
    )


def render_signature(signature: Signature) -> bytes:
    """Return a signature file."""
    public, signed = (base64.b64encode(raw).decode() for raw in (signature.public_key, signature.signature))
    return f"{CONTEXT}\n{ALGORITHM} {public}\n{signed}\n".encode("ascii")


def parse_signature(raw: bytes, place: str) -> Signature:
    """Return what a signature file holds. Raises NotVerifiedError: it is not one."""
    try:
        _, key, signature, _ = raw.decode("ascii").split("\n")
        parsed = Signature(
            public_key=base64.b64decode(key.partition(" ")[2], validate=True),
            signature=base64.b64decode(signature, validate=True),
        )
    except (ValueError, binascii.Error):
        parsed = Signature(public_key=b"", signature=b"")
    sizes = len(parsed.public_key), len(parsed.signature)
    # Base64 has spare bits: only the one spelling that this program writes is accepted.
    if sizes != (_KEY_BYTES, _SIGNATURE_BYTES) or raw != render_signature(parsed):
        raise NotVerifiedError(
            "this is not a signature of a package.", place=place, fix="ask for the signature again."
        )
    return parsed


def verify_signature(archive_sha256: str, signature: Signature, key: Any, place: str) -> None:
    """Do nothing if a signature is that of the archive under a public key.

    Raises NotVerifiedError: made with another key, or for another archive.
    """
    invalid = load_extra("cryptography.exceptions").InvalidSignature
    if signature.public_key != key.public_bytes_raw():
        raise NotVerifiedError(
            "the package is signed with another key than the one given.",
            place=place,
            fix="get the signer's public key again on a way that you trust, or do not use the package.",
        )
    try:
        key.verify(signature.signature, make_message(archive_sha256))
    except invalid as error:
        raise NotVerifiedError(
            "the signature is not that of this archive: one of them was changed.",
            place=place,
            fix="ask for both again; do not use this package.",
        ) from error


def load_private_key(path: Path, passphrase: str | None) -> Any:
    """Return an Ed25519 private key from a PEM (PKCS 8) or OpenSSH file.

    Raises UsageError: no such key in the file, another kind of key, or a passphrase that is missing or wrong.
    """
    raw, serialization = _read_key(path), load_extra("cryptography.hazmat.primitives.serialization")
    is_ssh = b"OPENSSH PRIVATE KEY" in raw
    load = serialization.load_ssh_private_key if is_ssh else serialization.load_pem_private_key
    # Bytes of the environment that are no UTF-8 come as surrogates.
    password = os.fsencode(passphrase) if passphrase else None
    try:
        key = load(raw, password)
    except TypeError as error:
        # With a passphrase for a plain key, and without one for a key that needs it.
        needed = "is needed for this key" if password is None else "is set, but this key has none"
        raise UsageError(
            f"a passphrase {needed}.", place=str(path), fix=f"set or unset {PASSPHRASE_VARIABLE}."
        ) from error
    except load_extra("cryptography.exceptions").UnsupportedAlgorithm as error:
        raise UsageError(
            f"this key cannot be read ({error}).", place=str(path), fix="save it as PEM: openssl genpkey"
        ) from error
    except ValueError as error:
        wrong = password is not None and "ssword" in str(error)
        raise UsageError(
            "the passphrase is wrong." if wrong else "this is not a private key in PEM or OpenSSH form.",
            place=str(path),
            fix=f"correct {PASSPHRASE_VARIABLE}." if wrong else "make one: ssh-keygen -t ed25519 -f KEY",
        ) from error
    return _checked(key, "Ed25519PrivateKey", path)


def load_public_key(path: Path) -> Any:
    """Return an Ed25519 public key from a PEM or OpenSSH file.

    Raises UsageError: no such key in the file, a private one, or another kind of key.
    """
    raw, serialization = _read_key(path), load_extra("cryptography.hazmat.primitives.serialization")
    if b"PRIVATE KEY" in raw:
        raise UsageError(
            "this is a private key.", place=str(path), fix="give the public key, e.g. the file KEY.pub."
        )
    load = (
        serialization.load_pem_public_key
        if raw.lstrip().startswith(b"-----BEGIN")
        else serialization.load_ssh_public_key
    )
    try:
        key = load(raw)
    except (ValueError, load_extra("cryptography.exceptions").UnsupportedAlgorithm) as error:
        raise UsageError("this is not a public key in PEM or OpenSSH form.", place=str(path)) from error
    return _checked(key, "Ed25519PublicKey", path)


def _read_key(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_LARGEST_KEY_FILE)
    except OSError as error:
        raise UsageError(f"the key cannot be read ({error.strerror}).", place=str(path)) from error


def _checked(key: Any, kind: str, path: Path) -> Any:
    wanted = getattr(load_extra("cryptography.hazmat.primitives.asymmetric.ed25519"), kind)
    if not isinstance(key, wanted):
        raise UsageError(
            "this key is not an Ed25519 key.", place=str(path), fix="make one: ssh-keygen -t ed25519 -f KEY"
        )
    return key
