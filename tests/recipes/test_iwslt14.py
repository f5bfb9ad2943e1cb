"""IWSLT'14: the network, its loss, BLEU, and the numbers of the paper's appendix."""

import copy

import pytest
import torch
import torch.nn.functional as F

from dualavg_bench.data import translation
from dualavg_bench.data.translation import END, PAD
from dualavg_bench.models.translator import logits, translate, translator
from dualavg_bench.recipe import Passage, Point, registry
from dualavg_bench.recipe.schedules import make_schedule
from dualavg_bench.recipes import iwslt14
from dualavg_bench.run import samples

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def splits(embedded):
    return iwslt14.recipe("quick").data(embedded)


@pytest.fixture(scope="module")
def model(splits):
    """A network trained just enough to translate to different lengths."""
    torch.manual_seed(0)
    network = translator(*iwslt14.PIECES["quick"], width=32, hidden=64, heads=2, layers=1, dropout=0.1)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    for i in range(120):
        optimizer.zero_grad()
        batches = (12 * i + torch.arange(12)) % len(splits.train)  # about 40 pairs
        iwslt14.loss(network, splits.train.batch(batches, None)).backward()
        optimizer.step()
    return network.eval()


def untrained(**options):
    torch.manual_seed(0)
    return translator(40, 30, **{"width": 16, "hidden": 32, "heads": 2, "layers": 2, **options}).eval()


# The network


def test_no_piece_is_predicted_from_itself_or_later_ones():
    model = untrained()
    source, target = torch.randint(4, 40, (1, 6)), torch.randint(4, 30, (1, 8))
    changed = target.clone()
    changed[0, 5:] = 4 + (changed[0, 5:] - 3) % 26
    a, b = logits(model, source, target), logits(model, source, changed)
    assert torch.equal(a[:, :6], b[:, :6])  # the sixth depends on the five before it
    assert not torch.allclose(a[:, 6:], b[:, 6:])


def test_the_decoder_begins_with_end():
    model, seen = untrained(), []
    model.model.decoder.embed_tokens.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    logits(model, torch.tensor([[5, END]]), torch.tensor([[7, 8, END]]))
    assert seen[0].tolist() == [[END, 7, 8]]


def test_every_source_piece_and_its_position_matter():
    model = untrained()
    source, target = torch.tensor([[5, 6, 7, END]]), torch.tensor([[8, 9, END]])
    before = logits(model, source, target)
    for other in ([[5, 6, 8, END]], [[6, 5, 7, END]]):
        assert not torch.allclose(before, logits(model, torch.tensor(other), target))


def test_padding_changes_neither_loss_nor_translations(model, splits):
    batch = splits.valid.pick(range(12))
    padded = {**batch, "source": F.pad(batch["source"], (0, 9), value=PAD)}
    padded["target"] = F.pad(batch["target"], (0, 5), value=PAD)
    assert iwslt14.loss(model, padded).item() == pytest.approx(iwslt14.loss(model, batch).item(), rel=1e-5)
    sensitive = copy.deepcopy(model)  # large attention weights, so that attention to padding would show
    for layer in sensitive.model.decoder.layers:
        layer.encoder_attn.out_proj.weight.data.mul_(30)
    expected = iwslt14.hypotheses(sensitive, batch, 20)
    assert len(set(expected)) > 6
    assert iwslt14.hypotheses(sensitive, padded, 20) == expected
    assert [iwslt14.hypotheses(sensitive, splits.valid.pick([i]), 20)[0] for i in range(12)] == expected


def test_a_wider_beam_finds_likelier_translations(model, splits):
    batch = splits.valid.pick(range(12))

    def likelihood(beams):
        translations = translate(model, batch["source"], longest=20, beams=beams, length_penalty=0.0)
        rows = [[piece for piece in row[1:] if piece != PAD] for row in translations]
        target = translation._padded(rows)
        scores = logits(model, batch["source"], target).mT
        return -F.cross_entropy(scores, target, ignore_index=PAD, reduction="sum").item()

    assert likelihood(5) > likelihood(1) + 0.1


def test_the_beam_search_has_the_papers_settings(monkeypatch, splits):
    model, seen = untrained(), {}
    monkeypatch.setattr(model, "generate", lambda source, **given: seen.update(given) or source)
    iwslt14.hypotheses(model, splits.valid.pick([0]), 7)
    config = seen["generation_config"]
    assert (config.num_beams, config.length_penalty, config.max_new_tokens) == (5, 0.6, 7)
    assert config.early_stopping is True
    assert config.do_sample is False


def test_weights_are_initialised_as_in_fairseq():
    torch.manual_seed(0)
    model = translator(500, 400, width=64, hidden=256, layers=1)
    encoder, decoder = model.model.encoder, model.model.decoder
    for table in (encoder.embed_tokens, decoder.embed_tokens):
        assert table.weight[PAD].abs().max() == 0
        assert table.weight[4:].std().item() == pytest.approx(64**-0.5, rel=0.05)
        assert table.embed_scale == 8
    attention, up = decoder.layers[0].encoder_attn, encoder.layers[0].fc1
    for weight, bound in (
        (
            attention.q_proj.weight,
            (6 / 256) ** 0.5,
        ),  # one third of a matrix with 64 inputs and 3 * 64 outputs
        (attention.out_proj.weight, (6 / 128) ** 0.5),
        (up.weight, 64**-0.5),  # torch's own, as in fairseq since 2020
        (up.bias, 64**-0.5),
        (attention.q_proj.bias, 64**-0.5),
    ):
        assert weight.abs().max().item() == pytest.approx(bound, rel=0.01 if weight.ndim == 2 else 0.05)
    assert attention.out_proj.bias.abs().max() == 0


def test_only_the_decoders_embeddings_are_shared_with_the_output_layer():
    model = untrained()
    shapes = [tuple(p.shape) for p in model.parameters()]
    assert (shapes.count((30, 16)), shapes.count((40, 16))) == (1, 1)
    assert model.lm_head.weight is model.model.decoder.embed_tokens.weight
    again = untrained()
    again.load_state_dict(model.state_dict())
    assert again.lm_head.weight is again.model.decoder.embed_tokens.weight


# Loss and BLEU


def test_the_loss_smooths_labels_and_ignores_padding(model, splits):
    batch = splits.valid.pick(range(10))
    pieces = batch["target"] != PAD
    assert not pieces.all()
    scores = logits(model, batch["source"], batch["target"])[pieces]
    expected = F.cross_entropy(scores, batch["target"][pieces], label_smoothing=0.1)
    assert iwslt14.loss(model, batch).item() == pytest.approx(expected.item(), rel=1e-5)
    plain = F.cross_entropy(scores, batch["target"][pieces]).item()
    assert plain != pytest.approx(expected.item(), rel=1e-3)
    values = iwslt14.evaluate(model, [splits.valid.pick([i]) for i in range(10)], longest=2, tokenize="13a")
    assert values["loss"] == pytest.approx(plain, rel=1e-5)


def bleu_of(monkeypatch, model, splits, change, tokenize="13a"):
    def changed(_, batch, longest):
        return [change(sentence) for sentence in batch["wanted"]]

    monkeypatch.setattr(iwslt14, "hypotheses", changed)
    batches = (splits.valid.batch(torch.tensor([i]), None) for i in range(len(splits.valid)))
    return iwslt14.evaluate(model, batches, longest=20, tokenize=tokenize)["bleu"]


def test_perfect_translations_have_100_bleu_in_upper_and_lower_case(monkeypatch, model, splits):
    assert bleu_of(monkeypatch, model, splits, lambda s: s) == pytest.approx(100)
    assert bleu_of(monkeypatch, model, splits, str.upper) == pytest.approx(100)
    assert bleu_of(monkeypatch, model, splits, lambda s: s.replace("20", "30")) < 90
    assert bleu_of(monkeypatch, model, splits, lambda _: "") == 0


def test_bleu_does_not_tokenize_at_paper_scale(monkeypatch, model, splits):
    def spaced(sentence):
        return sentence.replace(",", " ,")

    assert bleu_of(monkeypatch, model, splits, spaced) == pytest.approx(100)
    assert bleu_of(monkeypatch, model, splits, spaced, "none") < 90
    for scale, expected in {"quick": "13a", "mini": "13a", "paper": "none"}.items():
        assert iwslt14.recipe(scale).evaluate.keywords["tokenize"] == expected


def test_samples_are_the_first_four_test_sentences(model, splits):
    shown = iwslt14.recipe("quick").samples(model, splits.test)
    assert [type(one) for one in shown] == [Passage] * 4
    assert [(one.given, one.truth) for one in shown] == list(
        zip(splits.test.given[:4], splits.test.wanted[:4], strict=True)
    )
    assert [one.made for one in shown] == iwslt14.hypotheses(model, splits.test.pick(range(4)), 20)
    assert all(samples.encode(one).kind == "passage" for one in shown)


# The recipe


def test_paper_scale_is_the_appendix():
    recipe = iwslt14.recipe("paper")
    assert recipe.accumulate == recipe.batch_size == 8
    assert recipe.data.keywords["tokens"] == 4096
    assert recipe.steps == 55 * (1100 // 8)
    assert recipe.precision == "float16"
    assert recipe.clip_norm is None
    assert recipe.seeds.confirm == 20
    assert all(grid.weight_decay == (1e-4,) for grid in recipe.grids.values())
    assert recipe.grids["mda"].schedule == ("tail",)  # the same as "fixed" until update 10,000
    assert recipe.steps < 10_000
    assert "inverse_sqrt" in recipe.grids["adam"].schedule
    assert recipe.grids["adam"].settings["betas"] == (0.9, 0.98)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    tail, fixed, inverse = (
        make_schedule(name, recipe.schedules, optimizer, recipe.steps)
        for name in ("tail", "fixed", "inverse_sqrt")
    )
    assert [tail.factor(k) for k in (1999, 3999, 9999, 10_000)] == pytest.approx([0.5, 1, 1, 1 / 1.0003])
    assert [fixed.factor(k) for k in (1999, 3999, recipe.steps - 1)] == pytest.approx([0.5, 1, 1])
    assert [inverse.factor(k) for k in (1999, 3999, 15_999)] == pytest.approx([0.5, 1, 0.5])


def test_the_papers_network_has_39_47_million_parameters():
    with torch.device("meta"):
        model = iwslt14.recipe("paper").model()
    config = model.config
    assert (config.dropout, config.attention_dropout, config.activation_dropout) == (0.3, 0, 0)
    assert (config.encoder_attention_heads, config.decoder_attention_heads) == (4, 4)
    assert config.activation_function == "relu"
    encoder, decoder = 2_102_784, 3_154_432  # parameters of one layer in fairseq, with norms and biases
    count = sum(p.numel() for p in model.parameters())
    # Pre-norm: two norms at the end.
    assert count == (8_848 + 6_632) * 512 + 6 * (encoder + decoder) + 2 * 1024
    assert round(count / 1e6, 2) == 39.47


@pytest.mark.slow
def test_the_papers_network_takes_two_steps():
    recipe = iwslt14.recipe("paper")
    torch.manual_seed(0)
    model = recipe.model()
    grid = recipe.grids["mda"]
    optimizer = registry.make("mda", model.parameters(), Point(grid.lr[0], 1e-4), grid.settings)
    schedule = make_schedule("tail", recipe.schedules, optimizer, recipe.steps)
    ids = torch.randint(4, 6_632, (2, 5))
    ids[:, -1] = END
    before = model.lm_head.weight.detach().clone()
    for _ in range(2):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            value = recipe.loss(model, {"source": ids, "target": ids})
        value.backward()
        assert value.isfinite()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    assert not torch.equal(before, model.lm_head.weight)
