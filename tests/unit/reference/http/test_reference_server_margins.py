"""Margins of the two likeliest tokens, from the reference engine's own stream to the record's field."""

import json

from scripted_server import Client, ScriptedBackend, byte_tokenizer, output, round_stats

from draftproof.reference.types import TokenLogprobs
from draftproof.services.engines.chat.fold import ChatFold

TOKENIZER = byte_tokenizer()


def test_a_streamed_answer_gives_one_margin_a_token(client: Client, backend: ScriptedBackend) -> None:
    """What a plan asks for with logprobs and top_logprobs arrives for every token, drafted ones too."""
    ids = tuple(TOKENIZER.encode("hiya", add_special_tokens=False))
    told = tuple(
        TokenLogprobs(token_id=one, logprob=-0.75, top=((one, -0.75), (0, -0.75 - place)))
        for place, one in enumerate(ids)
    )
    backend.script = (
        output(ids[:1], "h", logprobs=told[:1]),
        output(ids[1:], "iya", end="stop", stats=round_stats(committed=3), logprobs=told[1:]),
    )
    fold = ChatFold()
    for index, event in enumerate(
        client.chat(stream=True, logprobs=True, top_logprobs=2, return_token_ids=True).events[:-1]
    ):
        fold.add(json.dumps(event).encode(), index)
    answer = fold.finish()
    assert answer.token_ids == ids
    assert answer.top_two_margins == (0.0, 1.0, 2.0, 3.0)
