"""A model folder is whole, and its hash stands for its content."""

import hashlib

import pytest
from arm_builders import model_folder

from draftproof.core.errors import PlanError
from draftproof.services.arms.model_files import (
    check_model_folder,
    combine_hashes,
    find_licence,
    hash_model,
    load_drafter_facts,
    load_model_facts,
)


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ("config.json", "lacks config.json"),
        ("tokenizer.json", "lacks tokenizer.json"),
        ("model.safetensors", "lacks the weights"),
    ],
)
def test_missing_model_file_is_named(tmp_path, missing, said):
    """A model folder that lacks a file is one sentence with the plan's key and the file."""
    (model_folder(tmp_path) / missing).unlink()
    with pytest.raises(PlanError, match=said) as caught:
        check_model_folder(tmp_path)
    assert caught.value.place == "target.model"


def test_missing_model_folder_is_named(tmp_path):
    """A path without a folder is one sentence."""
    with pytest.raises(PlanError, match="there is no model folder"):
        load_model_facts(tmp_path / "absent")


def test_hash_is_that_of_the_files_and_changes_with_one_byte(tmp_path):
    """Each file has its SHA-256; one changed byte changes the combined hash, a hidden file does not."""
    folder = model_folder(tmp_path)
    before = hash_model(folder)
    assert before["model.safetensors"] == hashlib.sha256(b"weights").hexdigest()
    (folder / ".cache").mkdir()
    (folder / ".cache" / "x").write_text("x")
    assert hash_model(folder) == before
    (folder / "model.safetensors").write_bytes(b"weightz")
    assert combine_hashes(hash_model(folder)) != combine_hashes(before)


def test_combined_hash_depends_on_names():
    """Two files that swap names are another model."""
    assert combine_hashes({"a": "1", "b": "2"}) != combine_hashes({"a": "2", "b": "1"})


def test_licence_comes_from_record_or_card_and_is_none_without(tmp_path):
    """An unknown licence is None; a card's header or a record states it."""
    folder = model_folder(tmp_path)
    assert find_licence(folder) is None
    (folder / "README.md").write_text("---\nlanguage: en\nlicense: apache-2.0\n---\n# Card\nlicense: mit\n")
    assert find_licence(folder) == "apache-2.0"
    (folder / "draftproof-model.json").write_text('{"licence": "MIT"}')
    assert find_licence(folder) == "MIT"


def test_licence_word_outside_a_header_is_not_a_licence(tmp_path):
    """Prose about licences in a card without a header states nothing."""
    folder = model_folder(tmp_path)
    (folder / "README.md").write_text("license: mit\n")
    assert find_licence(folder) is None


def test_facts_have_context_and_tokenizer_hash(tmp_path):
    """Context length and tokenizer hash are read from the folder."""
    facts = load_model_facts(model_folder(tmp_path))
    assert facts.max_context_tokens == 64
    assert facts.tokenizer_sha256 == hash_model(tmp_path)["tokenizer.json"]


def test_config_that_is_no_object_is_refused(tmp_path):
    """A damaged configuration is named."""
    (model_folder(tmp_path) / "config.json").write_text("[]")
    with pytest.raises(PlanError, match=r"config\.json: is not a JSON object"):
        load_model_facts(tmp_path)


def test_a_drafter_with_a_record_is_known_by_its_weights(tmp_path):
    """Hash of the weights, licence and provenance of the record; what the record lacks is None."""
    (tmp_path / "drafter.json").write_text('{"licence": "MIT", "provenance": 3}')
    (tmp_path / "weights.safetensors").write_bytes(b"weights")
    facts = load_drafter_facts(tmp_path, "arms.candidate.drafter.path")
    assert facts.sha256 == hashlib.sha256(b"weights").hexdigest()
    assert (facts.licence, facts.provenance, facts.tokenizer_sha256) == ("MIT", None, None)


def test_a_drafter_s_record_without_weights_is_named(tmp_path):
    """A record alone is no drafter."""
    (tmp_path / "drafter.json").write_text("{}")
    with pytest.raises(PlanError, match=r"lacks weights\.safetensors") as caught:
        load_drafter_facts(tmp_path, "arms.candidate.drafter.path")
    assert caught.value.place == "arms.candidate.drafter.path"


def test_a_draft_model_without_a_record_must_be_a_whole_model(tmp_path):
    """A folder of any causal model gives what a target's folder gives."""
    folder = model_folder(tmp_path)
    assert load_drafter_facts(folder, "k") == load_model_facts(folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(PlanError, match=r"lacks tokenizer\.json"):
        load_drafter_facts(folder, "k")
