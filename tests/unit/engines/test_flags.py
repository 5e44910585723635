"""Command lines to settings."""

import pytest

from draftproof.engines.reading.flags import flatten, mask_secrets, parse_flags


def test_every_flag_becomes_a_setting():
    """Both spellings of a value, switches, numbers, truth values and negative numbers are read."""
    line = "serve m --max-num-seqs 8 --dtype=bfloat16 --share 0.5 --eager --offset -1 --check false"
    assert parse_flags(line.split()) == {
        "max_num_seqs": 8, "dtype": "bfloat16", "share": 0.5, "eager": True, "offset": -1, "check": False,
    }  # fmt: skip


def test_known_flags_are_renamed_and_addresses_left_out():
    """An adapter's names are used; host, port and key say nothing about speed."""
    command = ["llama", "-md", "d.gguf", "--port", "80", "--api-key", "k"]
    assert parse_flags(command, names={"md": "drafter"}) == {"drafter": "d.gguf"}


def test_a_switch_does_not_swallow_the_word_after_it():
    """A flag that takes no value leaves a following word alone."""
    assert parse_flags(["x", "--verbose", "word", "--n", "2"], switches={"verbose"}) == {
        "verbose": True,
        "n": 2,
    }


def test_a_repeated_flag_keeps_its_last_value():
    """Programs take the last one."""
    assert parse_flags(["x", "--n", "1", "--n", "2"]) == {"n": 2}


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (["x", "--api-key", "abc", "-n", "2"], ("x", "--api-key", "***", "-n", "2")),
        (["x", "--hf-token=abc"], ("x", "--hf-token=***")),
        (["x", "--max-tokens", "8", "--tokenizer", "t"], ("x", "--max-tokens", "8", "--tokenizer", "t")),
    ],
)
def test_secrets_are_masked_and_token_counts_are_not(command, shown):
    """A key never reaches a manifest; a number of tokens is no key."""
    assert mask_secrets(command) == shown
    assert "abc" not in str(parse_flags(command))


def test_nested_tables_become_dotted_keys():
    """Lists become text, none stays none."""
    assert flatten({"a": {"b": 1, "c": None}, "d": [1, 2]}) == {"a.b": 1, "a.c": None, "d": "[1, 2]"}
