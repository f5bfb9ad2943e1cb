"""An encoder-decoder transformer: fairseq's transformer_iwslt_de_en, with pre-norm."""

from typing import Any

import torch
from torch import Tensor, nn

from dualavg_bench.data.translation import END, PAD


def translator(
    source_pieces: int,
    target_pieces: int,
    *,
    width: int = 512,
    hidden: int = 1024,
    heads: int = 4,
    layers: int = 6,
    dropout: float = 0.3,
) -> nn.Module:
    """Return M2M100 from transformers, whose layers are fairseq's, with separate vocabularies.

    Args:
        source_pieces: size of the encoder's vocabulary.
        target_pieces: size of the decoder's vocabulary; its input embeddings are also its output layer.
        width: of embeddings and layers.
        hidden: width of a layer's feed-forward network.
        heads: attention heads per layer.
        layers: number of layers of the encoder, and of the decoder.
        dropout: of the embeddings and each residual branch; fairseq has none on attention weights here.

    References:
        Ott et al., "fairseq", 2019, arXiv:1904.01038, architecture transformer_iwslt_de_en.
        Wang et al., "Learning deep transformer models", 2019, arXiv:1906.01787: pre-norm.
    """
    from transformers import M2M100Config, M2M100ForConditionalGeneration

    config = M2M100Config(
        vocab_size=target_pieces,
        d_model=width,
        encoder_layers=layers,
        decoder_layers=layers,
        encoder_ffn_dim=hidden,
        decoder_ffn_dim=hidden,
        encoder_attention_heads=heads,
        decoder_attention_heads=heads,
        dropout=dropout,
        attention_dropout=0.0,
        activation_dropout=0.0,
        encoder_layerdrop=0.0,
        decoder_layerdrop=0.0,
        activation_function="relu",
        scale_embedding=True,
        pad_token_id=PAD,
        eos_token_id=END,
        decoder_start_token_id=END,
    )
    model = M2M100ForConditionalGeneration(config)
    encoder = model.model.encoder
    shared = encoder.embed_tokens
    encoder.embed_tokens = type(shared)(source_pieces, width, PAD, embed_scale=shared.embed_scale)
    _initialise_as_fairseq(model)
    return model


def logits(model: nn.Module, source: Tensor, target: Tensor) -> Tensor:
    """Return the logits of every piece of `target` (n, time), given `source` and the previous pieces."""
    previous = torch.cat([torch.full_like(target[:, :1], END), target[:, :-1]], dim=1)
    output = model(
        input_ids=source, attention_mask=source.ne(PAD), decoder_input_ids=previous, use_cache=False
    )
    scores: Tensor = output.logits
    return scores


def translate(
    model: nn.Module, source: Tensor, *, longest: int, beams: int, length_penalty: float
) -> list[list[int]]:
    """Return the best translation that beam search finds for each row of `source`.

    As in fairseq, scores are divided by length ** length_penalty, where the length includes END, and the
    search for a sentence stops when there are as many finished translations as beams.
    """
    from transformers import GenerationConfig

    config = GenerationConfig(  # type: ignore[no-untyped-call]
        num_beams=beams,
        length_penalty=length_penalty,
        early_stopping=True,
        max_new_tokens=longest,
        do_sample=False,
        pad_token_id=PAD,
        eos_token_id=END,
        decoder_start_token_id=END,
    )
    generate: Any = model.generate
    rows: list[list[int]] = generate(source, attention_mask=source.ne(PAD), generation_config=config).tolist()
    return rows


def _initialise_as_fairseq(model: nn.Module) -> None:
    """Initialise as fairseq did in 2020: linear layers as in torch, except for attention."""
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Embedding):
            nn.init.normal_(layer.weight, std=layer.embedding_dim**-0.5)
            nn.init.zeros_(layer.weight[PAD])
        elif isinstance(layer, nn.Linear) and layer is not model.lm_head:  # lm_head is an embedding
            layer.reset_parameters()
            if name.endswith(("q_proj", "k_proj", "v_proj")):
                nn.init.xavier_uniform_(layer.weight, gain=2**-0.5)  # as if q, k and v were one matrix
            elif name.endswith("out_proj"):
                nn.init.xavier_uniform_(layer.weight)
                nn.init.zeros_(layer.bias)
