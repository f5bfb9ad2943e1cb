"""RoBERTa for masked language modeling, from transformers, with logits for the hidden tokens only."""

import math

from torch import Tensor, nn

from dualavg_bench.data.plain_text import END, PAD, START


class MaskedLM(nn.Module):
    """RoBERTa that applies its last layer, as wide as the vocabulary, only where tokens are hidden.

    Args:
        vocabulary: number of tokens.
        length: maximum length of the input.
        width: of embeddings and layers.
        layers: number of layers.
        heads: attention heads per layer.
        dropout: of embeddings and each residual branch.
        attention_dropout: of attention weights.

    Examples:
        >>> import torch
        >>> model = MaskedLM(vocabulary=300, length=8, width=16, layers=1, heads=2)
        >>> model(torch.full((3, 8), 7), torch.tensor([0, 5])).shape
        torch.Size([2, 300])

    References:
        Liu et al., "RoBERTa", 2019, arXiv:1907.11692; fairseq's roberta_base: width 768, hidden 3072, 12
        layers, 12 heads, norm after each branch. transformers adds an embedding of the single token type.
    """

    def __init__(
        self,
        vocabulary: int,
        length: int,
        width: int = 768,
        layers: int = 12,
        heads: int = 12,
        dropout: float = 0.1,
        attention_dropout: float = 0.1,
    ) -> None:
        super().__init__()
        from transformers import RobertaConfig, RobertaForMaskedLM  # slow to import

        config = RobertaConfig(
            vocab_size=vocabulary,
            hidden_size=width,
            intermediate_size=4 * width,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=attention_dropout,
            max_position_embeddings=length + PAD + 1,  # positions are counted from PAD + 1
            type_vocab_size=1,
            layer_norm_eps=1e-5,
            initializer_range=0.02 * math.sqrt(768 / width),  # keeps the size of sums over inputs
            bos_token_id=START,
            pad_token_id=PAD,
            eos_token_id=END,
            use_cache=False,
        )
        self.network = RobertaForMaskedLM(config)  # type: ignore[no-untyped-call]
        self.network.lm_head.dense.reset_parameters()  # fairseq uses torch's initialisation here

    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Return the logits (m, vocabulary) at m `positions` in the flattened `tokens` (n, time)."""
        states = self.network.roberta(tokens, attention_mask=tokens != PAD).last_hidden_state
        logits: Tensor = self.network.lm_head(states.flatten(0, 1)[positions])
        return logits
