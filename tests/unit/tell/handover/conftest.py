"""One packed run and one key pair for all tests of the handover."""

import subprocess
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from package_builders import RFC_8032_SECRET, store_run

from draftproof.measure.run.reporting import recompute
from draftproof.tell.handover.packing import PackOptions, pack_run


@pytest.fixture(scope="session")
def keys(tmp_path_factory):
    """Return the paths of a PEM key pair and of a second, foreign public key."""
    folder = tmp_path_factory.mktemp("keys")
    own = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(RFC_8032_SECRET))
    foreign = Ed25519PrivateKey.from_private_bytes(bytes(32))
    (folder / "key.pem").write_bytes(
        own.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    for name, key in (("key", own), ("foreign", foreign)):
        (folder / f"{name}.pub").write_bytes(
            key.public_key().public_bytes(
                serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
            )
        )
    return folder


@pytest.fixture(scope="session")
def run_path(tmp_path_factory):
    """Return a small run with its results."""
    path = store_run(tmp_path_factory.mktemp("runs") / "run")
    recompute(path, write=True)
    return path


@pytest.fixture(scope="session")
def packed(run_path, keys, tmp_path_factory):
    """Return what packing said of the small run, signed."""
    out = tmp_path_factory.mktemp("packages") / "run.tar"
    return pack_run(run_path, out, PackOptions(key=keys / "key.pem"))


@pytest.fixture
def package(packed, tmp_path):
    """Return a copy of the package with its signature, to be spoilt."""
    for path in (packed.archive, packed.signature):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path / packed.archive.name


@pytest.fixture(scope="session")
def ssh_keygen():
    """Return a maker of OpenSSH keys; skips where the program is missing."""
    import shutil

    program = shutil.which("ssh-keygen")
    if program is None:
        pytest.skip("ssh-keygen is not installed: OpenSSH keys cannot be made here")

    def make(path: Path, kind: str = "ed25519", passphrase: str = "") -> Path:
        subprocess.run([program, "-q", "-t", kind, "-N", passphrase, "-f", str(path)], check=True)
        return path

    return make
