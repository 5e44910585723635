"""A signature holds for one archive and one key, and only a key known before makes a package authentic."""

import base64
import hashlib
import shutil
import subprocess

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from package_builders import RFC_8032_SECRET

from draftproof.core.errors import NotVerifiedError, UsageError
from draftproof.tell.handover.archive import hash_file
from draftproof.tell.handover.signing import (
    load_private_key,
    load_public_key,
    make_message,
    parse_signature,
    sign,
    verify_signature,
)

# RFC 8032, section 7.1, test 1: the public key of RFC_8032_SECRET.
RFC_8032_PUBLIC = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
PASSPHRASE = "correct horse"  # noqa: S105 - of a key made for this test


@pytest.fixture
def archive(tmp_path):
    (tmp_path / "a.tar").write_bytes(b"any bytes")
    return tmp_path / "a.tar"


def test_a_signature_is_ed25519_over_context_and_hash(archive, keys):
    """The file states the key of RFC 8032's first vector, and what is signed is written down in the docs."""
    raw = sign(hash_file(archive), load_private_key(keys / "key.pem", None))
    parsed = parse_signature(raw, "sig")
    assert parsed.public_key.hex() == RFC_8032_PUBLIC
    message = f"draftproof package signature v1\n{hash_file(archive)}\n".encode()
    assert make_message(hash_file(archive)) == message
    own = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(RFC_8032_SECRET))
    assert parsed.signature == own.sign(message)
    verify_signature(hash_file(archive), parsed, load_public_key(keys / "key.pub"), "sig")


def test_the_same_archive_and_key_give_the_same_signature(archive, keys):
    """Ed25519 draws nothing."""
    key = load_private_key(keys / "key.pem", None)
    assert sign(hash_file(archive), key) == sign(hash_file(archive), key)


def test_another_key_and_another_archive_are_told_apart(archive, keys):
    """Each has its own sentence: what to do about them differs."""
    parsed = parse_signature(sign(hash_file(archive), load_private_key(keys / "key.pem", None)), "sig")
    with pytest.raises(NotVerifiedError, match="signed with another key"):
        verify_signature(hash_file(archive), parsed, load_public_key(keys / "foreign.pub"), "sig")
    with pytest.raises(NotVerifiedError, match="not that of this archive"):
        verify_signature("0" * 64, parsed, load_public_key(keys / "key.pub"), "sig")


def test_a_foreign_signature_under_the_stated_key_does_not_pass(archive, keys):
    """The key in the file is for the eye: stating the expected one does not help a forger."""
    parsed = parse_signature(sign(hash_file(archive), load_private_key(keys / "key.pem", None)), "sig")
    foreign = Ed25519PrivateKey.from_private_bytes(bytes(32)).sign(make_message(hash_file(archive)))
    forged = type(parsed)(public_key=parsed.public_key, signature=foreign)
    with pytest.raises(NotVerifiedError, match="not that of this archive"):
        verify_signature(hash_file(archive), forged, load_public_key(keys / "key.pub"), "sig")


def test_every_flipped_byte_of_a_signature_is_found(archive, keys):
    """No byte of the file is without meaning, spare bits of base64 among them."""
    raw, key = (
        sign(hash_file(archive), load_private_key(keys / "key.pem", None)),
        load_public_key(keys / "key.pub"),
    )
    for at in range(len(raw)):
        for bit in (1, 2, 64):
            flipped = raw[:at] + bytes([raw[at] ^ bit]) + raw[at + 1 :]
            with pytest.raises(NotVerifiedError):
                verify_signature(hash_file(archive), parse_signature(flipped, "sig"), key, "sig")


@pytest.mark.parametrize(
    "raw", [b"", b"x", b"\n\n\n", b"\xff", b"draftproof package signature v1\ned25519 AA==\nAA==\n"]
)
def test_what_is_no_signature_is_named_so(raw):
    """Rubbish is one sentence, not a traceback."""
    with pytest.raises(NotVerifiedError, match="not a signature of a package"):
        parse_signature(raw, "sig")


def test_openssh_keys_sign_and_verify(archive, tmp_path, ssh_keygen):
    """A key pair as ssh-keygen makes it: its signature holds for this archive and for no other."""
    path, digest = ssh_keygen(tmp_path / "id"), hash_file(archive)
    parsed = parse_signature(sign(digest, load_private_key(path, None)), "sig")
    public = load_public_key(tmp_path / "id.pub")
    assert parsed.public_key == public.public_bytes_raw()
    verify_signature(digest, parsed, public, "sig")
    with pytest.raises(NotVerifiedError):
        verify_signature(hashlib.sha256(b"another").hexdigest(), parsed, public, "sig")


def test_a_passphrase_is_asked_for_and_checked(tmp_path):
    """Needed and missing, wrong, right, and set for a key that has none."""
    key = Ed25519PrivateKey.from_private_bytes(bytes(32))
    for name, encryption in (
        ("locked", serialization.BestAvailableEncryption(PASSPHRASE.encode())),
        ("open", serialization.NoEncryption()),
    ):
        (tmp_path / name).write_bytes(
            key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
        )
    with pytest.raises(UsageError, match="a passphrase is needed"):
        load_private_key(tmp_path / "locked", None)
    with pytest.raises(UsageError, match="passphrase is wrong"):
        load_private_key(tmp_path / "locked", "no horse")
    with pytest.raises(UsageError, match="this key has none"):
        load_private_key(tmp_path / "open", PASSPHRASE)
    loaded = load_private_key(tmp_path / "locked", PASSPHRASE)
    assert loaded.private_bytes_raw() == bytes(32)


def test_keys_that_cannot_be_used_are_named(tmp_path, keys):
    """No such file, no key, another kind of key, a private key where the public one belongs."""
    with pytest.raises(UsageError, match="cannot be read"):
        load_private_key(tmp_path / "nowhere", None)
    (tmp_path / "rubbish").write_bytes(b"rubbish")
    with pytest.raises(UsageError, match="not a private key"):
        load_private_key(tmp_path / "rubbish", None)
    with pytest.raises(UsageError, match="not a public key"):
        load_public_key(tmp_path / "rubbish")
    with pytest.raises(UsageError, match="this is a private key"):
        load_public_key(keys / "key.pem")
    other = rsa.generate_private_key(public_exponent=65537, key_size=1024)  # noqa: S505 - refused by its kind
    (tmp_path / "rsa").write_bytes(
        other.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    with pytest.raises(UsageError, match="not an Ed25519 key"):
        load_private_key(tmp_path / "rsa", None)


def test_openssl_verifies_it_as_the_readme_says(archive, tmp_path, keys):
    """Another team needs no draftproof to check who signed."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed: its check cannot be made here")
    raw = sign(hash_file(archive), load_private_key(keys / "key.pem", None))
    (tmp_path / "message").write_bytes(make_message(hash_file(archive)))
    (tmp_path / "signature").write_bytes(base64.b64decode(raw.splitlines()[-1]))
    command = [openssl, "pkeyutl", "-verify", "-pubin", "-inkey", keys / "key.pub", "-rawin", "-in"]
    command += [tmp_path / "message", "-sigfile", tmp_path / "signature"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "Verified Successfully" in done.stdout, done.stderr


def test_a_passphrase_that_is_no_utf8_is_taken_as_its_bytes(tmp_path):
    """The environment holds bytes; what Python makes of them is turned back."""
    path, key = tmp_path / "key.pem", Ed25519PrivateKey.generate()
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"p\xff"),
        )
    )
    assert load_private_key(path, "p\udcff").private_bytes_raw() == key.private_bytes_raw()
