"""Text that arrives token by token: complete characters only, stop strings never shown, nothing lost."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_engine import byte_tokenizer

from draftproof.reference.detokenize import IncrementalDecoder, StopMatcher, TextStream

TOKENIZER = byte_tokenizer()


def decode(token_ids):
    return TOKENIZER.decode(token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def encode(text):
    return TOKENIZER(text, add_special_tokens=False)["input_ids"]


@given(st.text(max_size=60))
@settings(max_examples=60, deadline=None)
def test_pieces_join_to_the_text_without_half_characters(text) -> None:
    """Any text comes through byte by byte unchanged, and no piece shows a replacement character."""
    decoder = IncrementalDecoder(decode)
    pieces = [decoder.push(token_id) for token_id in encode(text)]
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in pieces)
    assert "".join([*pieces, decoder.flush()]) == text == decode(encode(text))


@given(st.lists(st.integers(0, 255), max_size=60))
@settings(max_examples=60, deadline=None)
def test_pieces_join_to_the_one_shot_decoding_of_any_bytes(token_ids) -> None:
    """Even bytes that are no text at all give what decoding them at once gives."""
    decoder = IncrementalDecoder(decode)
    pieces = [decoder.push(token_id) for token_id in token_ids]
    assert "".join([*pieces, decoder.flush()]) == decode(token_ids)


class Counting:
    """Decodes and counts the tokens that it is given."""

    def __init__(self, decode):
        self._decode, self.tokens = decode, 0

    def __call__(self, token_ids):
        self.tokens += len(token_ids)
        return self._decode(token_ids)


def skip_evens(token_ids):
    """Decode with half of the vocabulary special: even ids have no text."""
    return "".join(chr(97 + one % 26) for one in token_ids if one % 2)


ENDLESS = {
    "text": (decode, encode("every word is one of many ") * 20),
    "bytes of no character": (decode, encode("日")[:1] * 500),
    "halves of characters": (decode, encode("日")[:2] * 250),
    "tokens without text": (skip_evens, [1] + [2] * 500),
    "text between tokens without": (skip_evens, [1, 2, 2, 2, 3] * 100),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_the_cost_of_a_token_does_not_grow_with_the_output(name) -> None:
    """Each token is decoded again a bounded number of times, whatever the output is made of."""
    how, token_ids = ENDLESS[name]
    counting = Counting(how)
    decoder = IncrementalDecoder(counting)
    pieces = [decoder.push(token_id) for token_id in token_ids]
    assert "".join([*pieces, decoder.flush()]) == how(token_ids)
    assert counting.tokens < 40 * len(token_ids)


def test_unfinished_character_is_held_until_it_is_whole() -> None:
    """The bytes of one character show nothing until the last of them is there."""
    decoder = IncrementalDecoder(decode)
    assert [decoder.push(token_id) for token_id in encode("日")] == ["", "", "日"]


@given(st.text("ab", max_size=30), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
@settings(max_examples=200, deadline=None)
def test_stop_strings_cut_at_the_first_completed_match(text, stop) -> None:
    """Fed character by character, what is shown ends before the stop string that completes first."""
    stream = TextStream(lambda ids: "".join(map(chr, ids)), stop)
    shown = ""
    for count, char in enumerate(text, start=1):
        shown += stream.push(ord(char))
        if stream.stopped:
            complete = [text.find(s) for s in stop if s in text[:count]]
            assert not any(s in text[: count - 1] for s in stop)
            assert shown == text[: min(complete)]
            return
    assert not any(s in text for s in stop)
    assert shown + stream.flush() == text


def test_text_that_may_become_a_stop_string_is_held_back() -> None:
    """A prefix of a stop string is shown only once it can no longer become one."""
    matcher = StopMatcher(["END"])
    assert [matcher.push(piece) for piece in ("a E", "N", "x", "EN")] == ["a ", "", "ENx", ""]
    assert matcher.flush() == "EN"
