"""Invented prompts of a stated number of tokens, for recordings that keep lengths and no words.

Pure. Each of the 256 words is one token, with the blank before it, in the vocabularies of SmolLM2, Llama 2
and 3, Gemma 3 and GPT-4o, so n words are n tokens there; what a chat template adds comes on top. A byte of an
extendable hash (SHAKE-256) chooses a word: the same text on every machine and with every library version.
"""

import hashlib
from collections.abc import Iterator, Sequence

_TEXT = (
    "added allow allows along among answer area author average avoid away back birds block blue body "
    "books break build built call came card cause cell change chapter check city class close code color "
    "comes connect contact control copy core correct count cover created daily data date deep draw earth "
    "energy every example expect fact fair fall fast feature feel file final flow foot form friends front "
    "game general give glass global goal gold good greater groups growth guide hand health heart height "
    "help high history home image images impact index inside iron issue issues items journal keep kind "
    "last late later leading learn least length level levels life limit line lines little live local look "
    "looking loss main major mark math matter mean means measure members metal methods mind modern months "
    "move music name natural nature near network never news normal nothing number object open order "
    "outside page paper pattern period person picture piece place plan point popular post power present "
    "press price problem process program project quick race range read recent record reduce regular "
    "remove rest return rich right river road rock role room root rule rules science search second "
    "section seen sense sign similar sleep slow small social someone song soon source south space special "
    "speech spring staff star started stay step stop store string study surface table target task term "
    "terms then thing things time times tool topic total town track trade train travel type unit view "
    "volume walk wall warm water ways week what whole wide winter work world write year years"
)
_WORDS = tuple(_TEXT.split())


def make_filler(tokens: int, name: str, blocks: Sequence[int] = (), block_tokens: int = 1) -> str:
    """Return a text of `tokens` words that depends on its arguments alone.

    Args:
        tokens: how many words; at least one is written.
        name: what the words are drawn by where `blocks` do not say: texts of two names begin differently.
        blocks: identities of the text's blocks. Two texts whose first blocks have the same identities begin
            alike for so many words, and differ from there.
        block_tokens: words of a block.
    """
    tokens = max(tokens, 1)
    words: list[str] = []
    for number, count in zip(blocks, _split(tokens, block_tokens), strict=False):
        words += _draw(count, "block", number)
    words += _draw(tokens - len(words), "text", name)
    return " ".join(words)


def _split(tokens: int, block_tokens: int) -> Iterator[int]:
    """Yield the words of each block of a text, the last one as long as is left."""
    for start in range(0, tokens, block_tokens):
        yield min(block_tokens, tokens - start)


def _draw(count: int, *parts: str | int) -> Iterator[str]:
    seed = "\x1f".join(map(str, parts)).encode("utf-8", "surrogatepass")
    return map(_WORDS.__getitem__, hashlib.shake_256(seed).digest(count))
