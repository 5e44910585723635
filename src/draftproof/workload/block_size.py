"""How many tokens of a prompt each entry of `hash_ids` stands for.

Pure. A trace shows it by its lengths: a prompt of 6,758 tokens with 14 entries has blocks of 483 to 519
tokens, of which only 512 is a size that engines use. Where several sizes fit, the plan has to say it.
"""

from collections.abc import Iterable

from draftproof.errors import WorkloadError

BLOCK_KEY = "workload.block_tokens"
_SIZES = tuple(1 << power for power in range(13))  # 1 to 4,096: engines keep blocks of powers of two


def decide_block_tokens(
    stated: int | None, prompts: Iterable[tuple[int | None, int, int]], name: str
) -> int | None:
    """Return the tokens of a block, None for a trace without blocks.

    Args:
        stated: what the plan or the format says.
        prompts: tokens, blocks and line of each prompt.
        name: the trace's file.

    Raises:
        WorkloadError: a prompt that is not made of blocks of the stated size, or several sizes that fit.
    """
    told = [(tokens, blocks, line) for tokens, blocks, line in prompts if tokens is not None and blocks]
    if not told:
        return None
    if stated is not None:
        _check(stated, told, name)
        return stated
    fitting = [size for size in _SIZES if _fits(size, told)]
    if len(fitting) != 1:
        which = f"{', '.join(map(str, fitting))} tokens fit" if fitting else "no power of two fits"
        raise WorkloadError(
            f"the trace does not say of how many tokens its blocks are: {which} its lengths",
            place=f"{name}, {BLOCK_KEY}",
            fix=f"state the tokens of an entry of hash_ids: {BLOCK_KEY} in the plan (init: --block-tokens).",
        )
    return fitting[0]


def _fits(size: int, told: list[tuple[int, int, int]]) -> bool:
    """A trace names the last, shorter block of every prompt, or of none."""
    whole = all(tokens // size == blocks for tokens, blocks, _ in told)
    return whole or all(-(-tokens // size) == blocks for tokens, blocks, _ in told)


def _check(stated: int, told: list[tuple[int, int, int]], name: str) -> None:
    if _fits(stated, told):
        return
    tokens, blocks, line = next(
        (one for one in told if one[1] not in {one[0] // stated, -(-one[0] // stated)}), told[0]
    )
    raise WorkloadError(
        f"a prompt of {tokens:,} tokens has {-(-tokens // stated):,} blocks of {stated}, and hash_ids names "
        f"{blocks:,}",
        place=f"{name}:{line}",
        fix=f"state the tokens of one entry of hash_ids as {BLOCK_KEY} in the plan, or remove hash_ids.",
    )
