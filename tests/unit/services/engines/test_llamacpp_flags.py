"""llama.cpp's launch commands: every flag a setting, the method in force first."""

import pytest

from draftproof.services.engines.llamacpp import LLAMACPP


def read(*flags):
    return LLAMACPP.read_flags(("llama-server", "-m", "/models/target.gguf", "--port", "8080", *flags))


def test_without_a_type_the_method_is_off():
    """A draft model alone switches nothing on: the method stays off and the draft is on record."""
    plain, with_draft = read(), read("-md", "/models/draft.gguf")
    assert plain == {"model": "/models/target.gguf", "speculation.method": "off"}
    assert with_draft == plain | {"drafter": "/models/draft.gguf"}
    assert read("--spec-type", "none") == plain


@pytest.mark.parametrize(
    ("flags", "length"),
    [
        (("--spec-type", "draft-simple", "-md", "d.gguf"), 3),
        (("--spec-type", "draft-simple", "-md", "d.gguf", "--spec-draft-n-max", "7"), 7),
        (("--spec-type", "draft-eagle3", "--spec-draft-n-max=5"), 5),
        (("--spec-type", "ngram-simple"), 48),
        (("--spec-type", "ngram-simple", "--spec-ngram-simple-size-m", "8", "--spec-draft-n-max", "9"), 8),
        (("--spec-type", "ngram-map-k4v", "--spec-ngram-map-k4v-size-m", "6"), 6),
        (("--spec-type", "ngram-mod"), 64),
        (("--spec-type", "ngram-simple,draft-simple", "--spec-ngram-simple-size-m", "2"), 3),
        (("--spec-default",), 64),
        (("--spec-type", "ngram-cache", "--spec-draft-n-max", "5"), 8),
    ],
)
def test_the_draft_length_is_that_of_the_method_in_force(flags, length):
    """Each method has a flag and a default of its own; a flag of another method bounds nothing."""
    assert read(*flags)["speculation.num_spec_tokens"] == length


@pytest.mark.parametrize(
    ("flags", "context"),
    [
        (("-c", "8192", "-np", "4"), 2048),
        (("--ctx-size", "8192", "--parallel=4"), 2048),
        (("-c", "8192", "-np", "4", "-kvu"), 8192),
        (("-c", "8192"), 8192),
        (("-c", "8192", "-np", "-1"), 8192),
        (("-np", "4"), None),
        (("-c", "0", "-np", "4"), None),
    ],
)
def test_a_slot_has_its_part_of_the_context(flags, context):
    """All of it where the slots share one cache; nothing is known where the model decides."""
    assert LLAMACPP.find_context(("llama-server", "-m", "m.gguf", *flags)) == context


def test_the_default_switch_is_spelled_out():
    """--spec-default stands for four settings, which a comparison must see."""
    settings = read("--spec-default")
    assert settings["speculation.method"] == "ngram-mod"
    assert settings["speculation.ngram_mod_n_match"] == 24
    assert "speculation.default" not in settings


def test_two_spellings_of_a_flag_are_one_setting():
    """Arms that spell the same flag in two ways do not differ."""
    short = read(
        "-c", "4096", "-np", "2", "-t", "2", "-fa", "on", "-ngl", "99", "-md", "d", "--draft-p-min", "0.5"
    )
    long = read(
        *("--ctx-size", "4096", "--parallel", "2", "--threads", "2", "--flash-attn", "on"),
        *("--gpu-layers", "99", "--model-draft", "d", "--spec-draft-p-min", "0.5"),
    )
    assert short == long
    assert short["ctx_size"] == 4096
    assert short["parallel"] == 2
    assert short["speculation.draft_p_min"] == 0.5


def test_address_key_and_logging_are_left_out():
    """What says nothing about speed or is a secret is no setting."""
    assert read("--host", "0.0.0.0", "--api-key", "sk-secret", "-lv", "4", "--log-file", "x") == read()  # noqa: S104


def test_every_drafting_flag_lies_below_one_key():
    """A plan declares all drafting flags with the one word `speculation`."""
    settings = read(
        "--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", "3", "--spec-synth-len", "2.5"
    )
    changed = settings.keys() - read().keys()
    assert changed == {
        "speculation.ngram_simple_size_n",
        "speculation.num_spec_tokens",
        "speculation.synth_len",
    }
