"""Command lines to settings."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.core.secrets import is_secret_name
from draftproof.services.engines import adapter_for
from draftproof.services.engines.commands import (
    find_unread_words,
    find_written_secret,
    flatten,
    list_flags,
    list_secret_values,
    mask_secrets,
    parse_flags,
    words_before_flags,
)


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


@given(st.lists(st.sampled_from(["run", "-a", "--b", "--c=2", "-1", "x y", "-", "--d-e=", "3"]), max_size=9))
def test_no_word_of_a_command_is_lost(command):
    """Head and uses, put together again, are the command."""
    again = list(words_before_flags(command))
    for use in list_flags(command):
        again += (use.written, *use.words)
    assert again == command


@pytest.mark.parametrize(
    ("engine", "one", "other"),
    [
        ("vllm", "vllm serve --port {port} big/A", "vllm serve --port {port} tiny/B"),
        ("vllm", "vllm serve --enforce-eager big/A", "vllm serve --enforce-eager tiny/B"),
        ("vllm", "numactl --cpunodebind=0 vllm serve A", "numactl --cpunodebind=0 vllm serve B"),
        ("vllm", "vllm serve m --lora-modules a=/x b=/y", "vllm serve m --lora-modules a=/x b=/z"),
        ("tensorrt-llm", "trtllm-serve --backend pytorch big", "trtllm-serve --backend pytorch tiny"),
        ("sglang", "launch --cuda-graph-bs 1 2 4", "launch --cuda-graph-bs 1 2 64"),
        ("llamacpp", "llama-server --lora x --lora y", "llama-server --lora z --lora y"),
        ("llamacpp", "llama-server --lora-scaled x 1.0", "llama-server --lora-scaled x 0.1"),
    ],
)
def test_nothing_that_two_commands_say_differently_stays_unseen(engine, one, other):
    """Words that stand alone, further values and earlier uses of a flag differ in the settings too."""
    read = adapter_for(engine).read_flags

    def settings(line):
        words = line.split()
        return read(words) | find_unread_words(words, read(words))

    assert settings(one) != settings(other)
    assert settings(one) == settings(one)


def test_words_about_drafts_are_settings_of_speculation_and_what_is_read_is_not_told_twice():
    """A drafting flag's further words lie below `speculation`, where a plan declares what changes."""
    words = [
        "s",
        "--spec-draft",
        "a",
        "b",
        "--ctx",
        "8",
        "--rate",
        "0.50",
        "--json",
        '{"x":1}',
        "--port",
        "1",
    ]
    assert find_unread_words(words, {"draft": "a", "ctx": 8, "rate": 0.5}) == {"speculation.words": "b"}


def test_a_key_is_found_by_the_name_of_its_flag():
    """The value that refers to the environment is a secret to mask, one that is written out is refused."""
    command = ["s", "--api-key", "${KEY}", "-hft", "hf_x", "--max-tokens", "8"]
    assert list_secret_values(command) == ("${KEY}", "hf_x")
    assert find_written_secret(command) == "hft"
    assert find_written_secret(command[:3]) is None
    assert [is_secret_name(name) for name in ("MYPASS", "LLM_PAT", "two_pass_prefill", "tokenizer")] == [
        True, True, False, False,
    ]  # fmt: skip
