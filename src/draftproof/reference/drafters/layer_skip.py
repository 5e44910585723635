"""Plain layer skipping: which of the target's layers draft, written as `layers:0-9,20-29`."""

from draftproof.errors import UsageError

SKIP_PREFIX = "layers:"


def parse_layers(text: str, num_layers: int) -> tuple[int, ...]:
    """Return the layer indices of `layers:0-9,20-29`, in rising order.

    Raises:
        UsageError: the text names no layers, or layers the target does not have.
    """
    chosen: set[int] = set()
    try:
        for part in text.removeprefix(SKIP_PREFIX).split(","):
            first, _, last = part.partition("-")
            run = range(int(first), int(last or first) + 1)
            if not run or run[-1] >= num_layers:  # looked at before it is made: it may be endlessly long
                raise ValueError(part)  # noqa: TRY301 - one way to refuse
            chosen.update(run)
    except ValueError:
        chosen = set()
    if not chosen:
        raise UsageError(
            "these are no layers of the target",
            place=text,
            fix=f"write indices from 0 to {num_layers - 1}, such as layers:0-9,20-{num_layers - 1}",
        )
    return tuple(sorted(chosen))


def format_layers(layers: tuple[int, ...]) -> str:
    """Return `layers:` and the indices, neighbours joined to ranges."""
    parts: list[list[int]] = []
    for layer in sorted(layers):
        if parts and layer == parts[-1][-1] + 1:
            parts[-1].append(layer)
        else:
            parts.append([layer])
    return SKIP_PREFIX + ",".join(f"{p[0]}-{p[-1]}" if len(p) > 1 else str(p[0]) for p in parts)
