"""A decoder-only transformer language model: XGLM from transformers, set up as fairseq's transformer_lm."""

from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from transformers import XGLMForCausalLM


def transformer_lm(
    vocabulary: int,
    length: int,
    width: int = 512,
    layers: int = 6,
    heads: int = 8,
    hidden: int | None = None,
    dropout: float = 0.1,
) -> "XGLMForCausalLM":
    """Return a pre-norm transformer with sinusoidal positions, whose output layer is its input embeddings.

    Args:
        vocabulary: number of words.
        length: maximum length of the input.
        width: of embeddings and layers.
        layers: number of layers.
        heads: attention heads per layer.
        hidden: width of a layer's feed-forward network; default four times `width`.
        dropout: of the embeddings and each residual branch; fairseq has none on attention and activations.

    Examples:
        >>> import torch
        >>> model = transformer_lm(vocabulary=100, length=8, width=16, layers=2, heads=2)
        >>> model(torch.zeros(3, 8, dtype=torch.long)).logits.shape
        torch.Size([3, 8, 100])

    References:
        Ott et al., "fairseq", 2019, arXiv:1904.01038, architecture transformer_lm: width 512, hidden 2048,
        6 layers, 8 heads, norm before each branch and after the last, embeddings times sqrt(width).
    """
    from transformers import XGLMConfig, XGLMForCausalLM  # slow to import

    config = XGLMConfig(
        vocab_size=vocabulary,
        max_position_embeddings=length,
        d_model=width,
        ffn_dim=hidden or 4 * width,
        num_layers=layers,
        attention_heads=heads,
        activation_function="relu",
        dropout=dropout,
        attention_dropout=0.0,
        activation_dropout=0.0,
        scale_embedding=True,
        tie_word_embeddings=True,
        use_cache=False,
        # No word of the vocabulary means padding, start or end.
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = XGLMForCausalLM(config)  # type: ignore[no-untyped-call]
    _initialise_as_fairseq(model)
    return model


def _initialise_as_fairseq(model: "XGLMForCausalLM") -> None:
    """Initialise as fairseq did in 2020: linear layers as in torch, except for attention."""
    nn.init.normal_(model.model.embed_tokens.weight, std=model.config.d_model**-0.5)
    for layer in model.model.layers:
        attention = layer.self_attn
        for linear in (attention.q_proj, attention.k_proj, attention.v_proj, layer.fc1, layer.fc2):
            linear.reset_parameters()
        for linear in (attention.q_proj, attention.k_proj, attention.v_proj):
            nn.init.xavier_uniform_(linear.weight, gain=2**-0.5)  # as if q, k and v were one matrix
        nn.init.xavier_uniform_(attention.out_proj.weight)
        nn.init.zeros_(attention.out_proj.bias)
