"""A draft fits its target only if every id means the same string."""

import json

import pytest
from arm_builders import model_folder

from draftproof.core.errors import PlanError
from draftproof.services.arms.model_files import compare_tokenizers, load_vocabulary

VOCAB = {"<s>": 0, "red": 1, "lamp": 2}


def test_equal_tokenizers_are_compatible(tmp_path):
    """Two folders with the same tokens fit."""
    compared = compare_tokenizers(model_folder(tmp_path / "t", VOCAB), model_folder(tmp_path / "d", VOCAB))
    assert (compared.compatible, compared.differences) == (True, ())


def test_equal_sizes_with_swapped_strings_are_incompatible(tmp_path):
    """Sizes prove nothing: two swapped tokens are found and shown by id."""
    target = model_folder(tmp_path / "t", VOCAB)
    draft = model_folder(tmp_path / "d", {"<s>": 0, "lamp": 1, "red": 2})
    compared = compare_tokenizers(target, draft)
    assert not compared.compatible
    assert "id 1 is 'red' in the target and 'lamp' in the draft" in compared.differences


def test_first_differences_are_listed(tmp_path):
    """A wholly different tokenizer lists five differences."""
    many = {"<s>": 0} | {f"w{n}": n for n in range(1, 21)}
    other = {"<s>": 0} | {f"v{n}": n for n in range(1, 21)}
    target, draft = model_folder(tmp_path / "t", many), model_folder(tmp_path / "d", other)
    compared = compare_tokenizers(target, draft)
    assert len(compared.differences) == 5


def test_missing_token_is_a_difference(tmp_path):
    """A draft with fewer tokens says which id it lacks."""
    compared = compare_tokenizers(
        model_folder(tmp_path / "t", VOCAB), model_folder(tmp_path / "d", {"<s>": 0, "red": 1})
    )
    assert compared.differences == ("id 2 is 'lamp' in the target and missing in the draft",)


def test_special_tokens_are_compared(tmp_path):
    """A token that is special in one folder only is a difference."""
    compared = compare_tokenizers(
        model_folder(tmp_path / "t", VOCAB, special=("<s>", "red")), model_folder(tmp_path / "d", VOCAB)
    )
    assert compared.differences == ("'red' is a special token only in the target",)


def test_configured_special_ids_are_compared(tmp_path):
    """Two end-of-sequence ids are a difference even where all strings agree."""
    compared = compare_tokenizers(
        model_folder(tmp_path / "t", VOCAB, {"eos_token_id": 0}),
        model_folder(tmp_path / "d", VOCAB, {"eos_token_id": 2}),
    )
    assert compared.differences == ("eos_token_id is 0 in the target and 2 in the draft",)


def test_older_vocabulary_files_are_read(tmp_path):
    """vocab.json with added tokens counts as a tokenizer."""
    (tmp_path / "vocab.json").write_text(json.dumps({"red": 1}))
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<s>": 0}))
    vocabulary = load_vocabulary(tmp_path)
    assert vocabulary.strings == {0: "<s>", 1: "red"}
    assert vocabulary.special_strings == {"<s>"}


def test_folder_without_tokenizer_is_refused(tmp_path):
    """A missing tokenizer is one sentence with the folder."""
    with pytest.raises(PlanError, match=r"has no tokenizer\.json"):
        load_vocabulary(tmp_path)


@pytest.mark.parametrize("text", ["{}", "not json"])
def test_damaged_tokenizer_file_is_refused(tmp_path, text):
    """A tokenizer file that is none is named."""
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(PlanError, match=r"tokenizer\.json"):
        load_vocabulary(tmp_path)
