"""Two checkouts of one version are told apart, and the same files are the same build."""

import msgspec
from tests.builders.records import build_manifest

import draftproof
from draftproof.core.build import digest_folder, digest_sources, is_other_build, name_build, source_sha256
from draftproof.core.manifests import Manifest

SOURCES = {"a.py": b"one", "sub/b.py": b"two"}


def write(folder, sources):
    """Write some sources, a table and what Python left beside them."""
    for name, content in (sources | {"data.toml": b"x", "__pycache__/a.pyc": b"y"}).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def test_the_same_files_are_the_same_build(tmp_path):
    """Wherever they lie and in whatever order they were written; what is no source does not count."""
    first, second = (
        write(tmp_path / "a", SOURCES),
        write(tmp_path / "b" / "c", dict(reversed(SOURCES.items()))),
    )
    (second / "data.toml").unlink()
    assert digest_folder(first) == digest_folder(second) == digest_sources(SOURCES)
    assert digest_folder(tmp_path / "none") is None


def test_this_program_has_a_build():
    """Noted once: a program that is changed on disk while it runs is still the one that began."""
    assert len(source_sha256() or "") == 64
    assert source_sha256() == source_sha256()


def test_any_change_of_a_file_is_another_build():
    """Of content, of a name, of where a text ends and the next begins."""
    others = (
        SOURCES | {"a.py": b"One"},
        {"a.py": b"one", "b.py": b"two"},
        {"a.py": b"onesub/b.py", "": b"two"},
        {"a.py": b"one"},
    )
    assert len({digest_sources(one) for one in (SOURCES, *others)}) == len(others) + 1


def test_a_build_is_another_one_only_where_that_is_known():
    """A run from before builds were noted is of the version that it states, no more."""
    version, own = draftproof.__version__, source_sha256()
    assert not is_other_build(version, own)
    assert not is_other_build(version, None)
    assert is_other_build(version, "0" * 64)
    assert is_other_build("0.0.1", None)
    assert name_build("1", None) == "1"
    assert name_build("1", "0123456789abcdef") == "1 (source 0123456789ab)"


def test_a_manifest_without_a_build_loads():
    """Run directories of before have no such field."""
    values = msgspec.to_builtins(build_manifest())
    del values["source_sha256"]
    assert msgspec.json.decode(msgspec.json.encode(values), type=Manifest).source_sha256 is None
