"""An encoder-decoder transformer, laid out as fairseq's transformer_iwslt_de_en with norms first."""

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
    """Return transformers' M2M100, whose blocks are fairseq's, with an encoder vocabulary of its own.

    Args:
        source_pieces: size of the encoder's vocabulary.
        target_pieces: size of the decoder's, whose input embeddings are its output layer too.
        width: of embeddings and layers.
        hidden: width of a block's ReLU network.
        heads: attention heads of a block.
        layers: blocks of the encoder, and of the decoder.
        dropout: of the embeddings and each residual branch; fairseq drops no attention weights here.

    References:
        Ott et al., "fairseq", 2019, arXiv:1904.01038, architecture transformer_iwslt_de_en.
        Wang et al., "Learning deep transformer models", 2019, arXiv:1906.01787: norms before each branch.
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
    _start_as_fairseq(model)
    return model


def logits(model: nn.Module, source: Tensor, target: Tensor) -> Tensor:
    """Return what `model` says of every piece of `target` (n, time), from `source` and the pieces before."""
    before = torch.cat([torch.full_like(target[:, :1], END), target[:, :-1]], dim=1)
    made = model(input_ids=source, attention_mask=source.ne(PAD), decoder_input_ids=before, use_cache=False)
    scores: Tensor = made.logits
    return scores


def translate(
    model: nn.Module, source: Tensor, *, longest: int, beams: int, length_penalty: float
) -> list[list[int]]:
    """Return the best translation that a beam search finds for each row of `source`.

    As in fairseq a score is divided by length ** length_penalty, END counted, and a sentence is done as soon
    as there are as many finished translations as beams.
    """
    from transformers import GenerationConfig

    how = GenerationConfig(  # type: ignore[no-untyped-call]
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
    rows: list[list[int]] = generate(source, attention_mask=source.ne(PAD), generation_config=how).tolist()
    return rows


def _start_as_fairseq(model: nn.Module) -> None:
    """Draw the weights as fairseq of 2020 does: torch's own linear layers but for attention."""
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Embedding):
            nn.init.normal_(layer.weight, std=layer.embedding_dim**-0.5)
            nn.init.zeros_(layer.weight[PAD])
        elif isinstance(layer, nn.Linear) and layer is not model.lm_head:  # that is an embedding
            layer.reset_parameters()
            if name.endswith(("q_proj", "k_proj", "v_proj")):
                nn.init.xavier_uniform_(layer.weight, gain=2**-0.5)  # as if they were one matrix
            elif name.endswith("out_proj"):
                nn.init.xavier_uniform_(layer.weight)
                nn.init.zeros_(layer.bias)
