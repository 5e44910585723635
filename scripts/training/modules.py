"""The trained parts as modules: the same arithmetic as the engine's kernels, with gradients."""

import torch
from torch import nn
from torch.nn import functional


class Rotary(nn.Module):
    """Rotary angles of positions 0 to `longest`.

    Args:
        inverse_frequencies: [head_size / 2].
        longest: positions.
    """

    cos: torch.Tensor
    sin: torch.Tensor

    def __init__(self, inverse_frequencies: torch.Tensor, longest: int) -> None:
        super().__init__()
        turned = torch.arange(longest, dtype=torch.float32)[:, None] * inverse_frequencies
        self.register_buffer("cos", turned.cos(), persistent=False)
        self.register_buffer("sin", turned.sin(), persistent=False)

    def forward(self, heads: torch.Tensor, first: int) -> torch.Tensor:
        """Return [texts, heads, tokens, head_size] turned, the first token at position `first`."""
        tokens = heads.shape[2]
        cos, sin = self.cos[first : first + tokens], self.sin[first : first + tokens]
        low, high = heads.chunk(2, dim=-1)
        return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)


class TrainedLayer(nn.Module):
    """One decoder layer of the target's shape.

    Args:
        hidden: width of a state.
        heads: query heads.
        kv_heads: key-value heads.
        head_size: width of a head.
        intermediate: width of the feed-forward.
        eps: of the norms.
    """

    def __init__(
        self, *, hidden: int, heads: int, kv_heads: int, head_size: int, intermediate: int, eps: float
    ) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_size = heads, kv_heads, head_size
        self.input_norm = nn.RMSNorm(hidden, eps)
        self.qkv = nn.Linear(hidden, (heads + 2 * kv_heads) * head_size, bias=False)
        self.output = nn.Linear(heads * head_size, hidden, bias=False)
        self.mlp_norm = nn.RMSNorm(hidden, eps)
        self.gate_up = nn.Linear(hidden, 2 * intermediate, bias=False)
        self.down = nn.Linear(intermediate, hidden, bias=False)

    def project(self, hidden: torch.Tensor, rotary: Rotary, first: int) -> tuple[torch.Tensor, ...]:
        """Return queries, keys and values of [texts, tokens, hidden], turned and all with `heads` heads."""
        texts, tokens, _ = hidden.shape
        parts = self.qkv(self.input_norm(hidden)).view(texts, tokens, -1, self.head_size).transpose(1, 2)
        query, key, value = parts.split([self.heads, self.kv_heads, self.kv_heads], dim=1)
        group = self.heads // self.kv_heads
        key = rotary(key, first).repeat_interleave(group, 1)
        return rotary(query, first), key, value.repeat_interleave(group, 1)

    def finish(self, hidden: torch.Tensor, mixed: torch.Tensor) -> torch.Tensor:
        """Return the layer's output from its input and [texts, heads, tokens, head_size] attended values."""
        hidden = hidden + self.output(mixed.transpose(1, 2).flatten(2))
        gate, up = self.gate_up(self.mlp_norm(hidden)).chunk(2, dim=-1)
        finished: torch.Tensor = hidden + self.down(functional.silu(gate) * up)
        return finished

    def forward(self, hidden: torch.Tensor, rotary: Rotary) -> torch.Tensor:
        """Return the layer's output over whole texts, [texts, tokens, hidden]."""
        query, key, value = self.project(hidden, rotary, 0)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.finish(hidden, mixed)


class AttachedModule(nn.Module):
    """The attached head, unrolled over its own outputs as it is used.

    Args:
        layer: its decoder layer.
        taps: states it reads per token.
        hidden: width of a state.
        scales: [taps], typical size of each tap's states; divided out so that all train alike.
        eps: of the norms.
    """

    scales: torch.Tensor

    def __init__(self, layer: TrainedLayer, taps: int, hidden: int, scales: torch.Tensor, eps: float) -> None:
        super().__init__()
        self.fuse = nn.Linear(taps * hidden, hidden, bias=False)
        self.state_norm, self.embedding_norm = nn.RMSNorm(hidden, eps), nn.RMSNorm(hidden, eps)
        self.mix = nn.Linear(2 * hidden, hidden, bias=False)
        self.layer = layer
        self.final_norm = nn.RMSNorm(hidden, eps)
        self.register_buffer("scales", scales)
        with torch.no_grad():
            self.fuse.weight.mul_(0.1)[:, -hidden:] += torch.eye(hidden)
            self.mix.weight.mul_(0.1)
            self.mix.weight[:, :hidden] += torch.eye(hidden)
            self.mix.weight[:, hidden:] += torch.eye(hidden)

    def forward(
        self, states: torch.Tensor, embeddings: torch.Tensor, rotary: Rotary, depth: int
    ) -> list[torch.Tensor]:
        """Return what the head gives at each depth of drafting, before its output rows.

        At depth d, row i stands for position i + d of the text and feeds on the head's own output at depth
        d - 1; it attends to the true states up to position i and to its own line of drafts.

        Args:
            states: [texts, tokens, taps, hidden] of positions 0 to tokens - 1.
            embeddings: [texts, tokens + depth - 1, hidden] of the tokens that follow each position.
            rotary: the target's.
            depth: drafts in a row.

        Returns:
            per depth [texts, tokens, hidden], normed.
        """
        tokens = states.shape[1]
        state = self.fuse((states / self.scales[:, None]).flatten(2))
        drafted: list[tuple[torch.Tensor, torch.Tensor]] = []
        outputs: list[torch.Tensor] = []
        for step in range(depth):
            embedding = self.embedding_norm(embeddings[:, step : step + tokens])
            mixed_in = self.mix(torch.cat((embedding, self.state_norm(state)), dim=-1))
            query, key, value = self.layer.project(mixed_in, rotary, step)
            drafted.append((key, value))
            state = self.layer.finish(mixed_in, _attend_line(query, drafted))
            outputs.append(self.final_norm(state))
        return outputs


def _attend_line(query: torch.Tensor, drafted: list[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    """Attend to the true positions up to one's own and to one's own line of drafts.

    Args:
        query: [texts, heads, tokens, head_size] at the newest depth.
        drafted: keys and values of each depth, of the same shape; depth 0 holds the true positions.
    """
    (true_keys, true_values), line = drafted[0], drafted[1:]
    if not line:
        return functional.scaled_dot_product_attention(query, true_keys, true_values, is_causal=True)
    tokens, scale = query.shape[2], query.shape[3] ** -0.5
    hidden_ahead = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
    scores = (query @ true_keys.transpose(2, 3) * scale).masked_fill(hidden_ahead, -torch.inf)
    own = [(query * key).sum(-1, keepdim=True) * scale for key, _ in line]
    shares = torch.cat([scores, *own], dim=-1).softmax(-1)
    mixed = shares[..., :tokens] @ true_values
    for index, (_, value) in enumerate(line):
        mixed = mixed + shares[..., tokens + index, None] * value
    return mixed


class ExitModule(nn.Module):
    """The early exit's adapter: a gated feed-forward and a final norm.

    Args:
        hidden: width of a state.
        intermediate: width of the feed-forward.
        eps: of the norms.
    """

    def __init__(self, hidden: int, intermediate: int, eps: float) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(hidden, eps)
        self.gate_up = nn.Linear(hidden, 2 * intermediate, bias=False)
        self.down = nn.Linear(intermediate, hidden, bias=False)
        self.final_norm = nn.RMSNorm(hidden, eps)
        with torch.no_grad():
            self.down.weight.mul_(0.1)

    def forward(self, state: torch.Tensor) -> torch.Tensor:
        """Return the normed state before the output rows, [..., hidden]."""
        gate, up = self.gate_up(self.norm(state)).chunk(2, dim=-1)
        normed: torch.Tensor = self.final_norm(state + self.down(functional.silu(gate) * up))
        return normed
