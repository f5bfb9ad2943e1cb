"""A decoder-only transformer language model, laid out as fairseq's transformer_lm."""

import math

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


class Block(nn.Module):
    """Causal self-attention and a ReLU network, each after its norm and around it a residual connection."""

    def __init__(self, width: int, heads: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)
        for layer in (self.qkv, self.out, self.up, self.down):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return the next layer's activations, of x's shape (batch, time, width)."""
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        x = x + self._drop(self.out(y.transpose(1, 2).flatten(2)))
        return x + self._drop(self.down(F.relu(self.up(self.norm2(x)))))

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training)


class TransformerLM(nn.Module):
    """Pre-norm transformer whose input embeddings are its output layer too; positions are sinusoidal.

    Args:
        vocabulary: number of words.
        length: longest input.
        width: of embeddings and layers.
        layers: how many blocks.
        heads: attention heads of a block.
        hidden: width of a block's ReLU network; four times `width` unless given.
        dropout: of the embeddings, the attention weights and each residual branch.

    Examples:
        >>> import torch
        >>> model = TransformerLM(vocabulary=100, length=8, width=16, layers=2, heads=2)
        >>> model(torch.zeros(3, 8, dtype=torch.long)).shape
        torch.Size([3, 8, 100])

    References:
        Ott et al., "fairseq", 2019, arXiv:1904.01038, architecture transformer_lm: width 512, hidden 2048,
        6 layers, 8 heads, norm before each branch and after the last, embeddings times sqrt(width).
    """

    positions: Tensor

    def __init__(
        self,
        vocabulary: int,
        length: int,
        width: int = 512,
        layers: int = 6,
        heads: int = 8,
        hidden: int | None = None,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.dropout = dropout
        self.embedding = nn.Parameter(torch.empty(vocabulary, width).normal_(std=width**-0.5))
        self.register_buffer("positions", _sinusoids(length, width), persistent=False)
        self.blocks = nn.ModuleList(Block(width, heads, hidden or 4 * width, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, words: Tensor) -> Tensor:
        """Return the logits of the word after each of `words`, an integer tensor (batch, time)."""
        x = F.embedding(words, self.embedding) * math.sqrt(self.embedding.shape[1])
        x = F.dropout(x + self.positions[: words.shape[1]], self.dropout, self.training)
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.embedding)


def _sinusoids(length: int, width: int) -> Tensor:
    half = width // 2
    scale = torch.exp(torch.arange(half) * (-math.log(10_000) / max(1, half - 1)))
    angles = torch.arange(length)[:, None] * scale
    return F.pad(torch.cat([angles.sin(), angles.cos()], dim=1), (0, width % 2))
