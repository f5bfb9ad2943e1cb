"""IWSLT'14: the translator, its loss, BLEU, and the appendix's figures."""

import copy
import subprocess
import sys

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
    """A network that has learnt enough to end its translations at different lengths."""
    torch.manual_seed(0)
    made = translator(*iwslt14.PIECES["quick"], width=32, hidden=64, heads=2, layers=1, dropout=0.1)
    optimizer = torch.optim.Adam(made.parameters(), lr=0.01)
    for i in range(120):
        optimizer.zero_grad()
        iwslt14.loss(made, splits.train.batch(torch.tensor([i % len(splits.train)]), None)).backward()
        optimizer.step()
    return made.eval()


def untrained(**options):
    torch.manual_seed(0)
    return translator(40, 30, **{"width": 16, "hidden": 32, "heads": 2, "layers": 2, **options}).eval()


# The translator


def test_no_piece_is_told_from_itself_or_those_after_it():
    model = untrained()
    source, target = torch.randint(4, 40, (1, 6)), torch.randint(4, 30, (1, 8))
    changed = target.clone()
    changed[0, 5:] = 4 + (changed[0, 5:] - 3) % 26
    a, b = logits(model, source, target), logits(model, source, changed)
    assert torch.equal(a[:, :6], b[:, :6])  # the sixth is told from the five before it
    assert not torch.allclose(a[:, 6:], b[:, 6:])


def test_the_decoder_begins_with_end():
    model, seen = untrained(), []
    model.model.decoder.embed_tokens.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    logits(model, torch.tensor([[5, END]]), torch.tensor([[7, 8, END]]))
    assert seen[0].tolist() == [[END, 7, 8]]


def test_every_source_piece_and_its_place_matter():
    model = untrained()
    source, target = torch.tensor([[5, 6, 7, END]]), torch.tensor([[8, 9, END]])
    whole = logits(model, source, target)
    for other in ([[5, 6, 8, END]], [[6, 5, 7, END]]):
        assert not torch.allclose(whole, logits(model, torch.tensor(other), target))


def test_padding_changes_neither_loss_nor_hypotheses(model, splits):
    batch = splits.valid.pick(range(12))
    padded = {**batch, "source": F.pad(batch["source"], (0, 9), value=PAD)}
    padded["target"] = F.pad(batch["target"], (0, 5), value=PAD)
    assert iwslt14.loss(model, padded).item() == pytest.approx(iwslt14.loss(model, batch).item(), rel=1e-5)
    loud = copy.deepcopy(model)  # what it attends to shouts, so that a look at padding would be heard
    for layer in loud.model.decoder.layers:
        layer.encoder_attn.out_proj.weight.data.mul_(30)
    made = iwslt14.hypotheses(loud, batch, 20)
    assert len(set(made)) > 6
    assert iwslt14.hypotheses(loud, padded, 20) == made
    assert [iwslt14.hypotheses(loud, splits.valid.pick([i]), 20)[0] for i in range(12)] == made


def test_a_wider_beam_finds_a_likelier_translation(model, splits):
    batch = splits.valid.pick(range(12))

    def likelihood(beams):
        found = translate(model, batch["source"], longest=20, beams=beams, length_penalty=0.0)
        rows = [[piece for piece in row[1:] if piece != PAD] for row in found]
        target = translation._padded(rows)
        scores = logits(model, batch["source"], target).mT
        return -F.cross_entropy(scores, target, ignore_index=PAD, reduction="sum").item()

    assert likelihood(5) > likelihood(1) + 0.1


def test_the_beam_search_is_the_papers(monkeypatch, splits):
    model, seen = untrained(), {}
    monkeypatch.setattr(model, "generate", lambda source, **given: seen.update(given) or source)
    iwslt14.hypotheses(model, splits.valid.pick([0]), 7)
    how = seen["generation_config"]
    assert (how.num_beams, how.length_penalty, how.max_new_tokens) == (5, 0.6, 7)
    assert how.early_stopping is True
    assert how.do_sample is False


def test_weights_are_drawn_as_fairseq_does():
    torch.manual_seed(0)
    model = translator(500, 400, width=64, hidden=256, layers=1)
    encoder, decoder = model.model.encoder, model.model.decoder
    for table in (encoder.embed_tokens, decoder.embed_tokens):
        assert table.weight[PAD].abs().max() == 0
        assert table.weight[4:].std().item() == pytest.approx(64**-0.5, rel=0.05)
        assert table.embed_scale == 8
    attention, up = decoder.layers[0].encoder_attn, encoder.layers[0].fc1
    for weight, bound in (
        (attention.q_proj.weight, (6 / 256) ** 0.5),  # a third of a matrix of 64 + 3 * 64
        (attention.out_proj.weight, (6 / 128) ** 0.5),
        (up.weight, 64**-0.5),  # torch's own, as fairseq has had it since 2020
        (up.bias, 64**-0.5),
        (attention.q_proj.bias, 64**-0.5),
    ):
        assert weight.abs().max().item() == pytest.approx(bound, rel=0.01 if weight.ndim == 2 else 0.05)
    assert attention.out_proj.bias.abs().max() == 0


def test_the_decoders_embeddings_are_its_output_layer_and_the_encoders_its_own():
    model = untrained()
    shapes = [tuple(p.shape) for p in model.parameters()]
    assert (shapes.count((30, 16)), shapes.count((40, 16))) == (1, 1)
    assert model.lm_head.weight is model.model.decoder.embed_tokens.weight
    again = untrained()
    again.load_state_dict(model.state_dict())
    assert again.lm_head.weight is again.model.decoder.embed_tokens.weight


# Loss and BLEU


def test_smoothing_is_torchs_on_the_pieces_that_are_there(model, splits):
    batch = splits.valid.pick(range(10))
    there = batch["target"] != PAD
    assert not there.all()
    scores = logits(model, batch["source"], batch["target"])[there]
    expected = F.cross_entropy(scores, batch["target"][there], label_smoothing=0.1)
    assert iwslt14.loss(model, batch).item() == pytest.approx(expected.item(), rel=1e-5)
    plain = F.cross_entropy(scores, batch["target"][there]).item()
    assert plain != pytest.approx(expected.item(), rel=1e-3)
    values = iwslt14.evaluate(model, [splits.valid.pick([i]) for i in range(10)], longest=2, tokenize="13a")
    assert values["loss"] == pytest.approx(plain, rel=1e-5)


def bleu_of(monkeypatch, model, splits, change, tokenize="13a"):
    answers = lambda _, batch, longest: [change(sentence) for sentence in batch["wanted"]]  # noqa: E731
    monkeypatch.setattr(iwslt14, "hypotheses", answers)
    batches = (splits.valid.batch(torch.tensor([i]), None) for i in range(len(splits.valid)))
    return iwslt14.evaluate(model, batches, longest=20, tokenize=tokenize)["bleu"]


def test_perfect_hypotheses_have_100_bleu_in_any_case(monkeypatch, model, splits):
    assert bleu_of(monkeypatch, model, splits, lambda s: s) == pytest.approx(100)
    assert bleu_of(monkeypatch, model, splits, str.upper) == pytest.approx(100)
    assert bleu_of(monkeypatch, model, splits, lambda s: s.replace("20", "30")) < 90
    assert bleu_of(monkeypatch, model, splits, lambda _: "") == 0


def test_text_that_is_tokenized_is_not_tokenized_again(monkeypatch, model, splits):
    def spaced(sentence):
        return sentence.replace(",", " ,")

    assert bleu_of(monkeypatch, model, splits, spaced) == pytest.approx(100)
    assert bleu_of(monkeypatch, model, splits, spaced, "none") < 90
    assert [iwslt14.recipe(scale).evaluate.keywords["tokenize"] for scale in ("quick", "mini", "paper")] == [
        "13a",
        "13a",
        "none",
    ]


def test_four_test_sentences_are_shown(model, splits):
    shown = iwslt14.recipe("quick").samples(model, splits.test)
    assert [type(one) for one in shown] == [Passage] * 4
    assert [(one.given, one.truth) for one in shown] == list(
        zip(splits.test.given[:4], splits.test.wanted[:4], strict=True)
    )
    assert [one.made for one in shown] == iwslt14.hypotheses(model, splits.test.pick(range(4)), 20)
    assert all(samples.encode(one).kind == "passage" for one in shown)


# The recipe


def test_the_recipe_is_imported_without_heavy_libraries():
    code = (
        "import sys; import dualavg_bench.recipes.iwslt14 as r; [r.recipe(s) for s in ('quick', 'paper')]; "
        "heavy = {'transformers', 'tokenizers', 'sacrebleu', 'babel', 'num2words'} & set(sys.modules); "
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_iwslt14_at_paper_scale_is_the_appendix():
    recipe = iwslt14.recipe("paper")
    assert recipe.accumulate == recipe.batch_size == 8
    assert recipe.data.keywords["tokens"] == 4096
    assert recipe.steps == 55 * (1100 // 8)
    assert recipe.precision == "float16"
    assert recipe.clip_norm is None
    assert recipe.seeds.confirm == 20
    assert all(grid.weight_decay == (1e-4,) for grid in recipe.grids.values())
    assert recipe.grids["mda"].schedule == ("tail",)  # "fixed" until update 10,000, and there are no more
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


def test_the_papers_translator_has_39_47_million_parameters():
    with torch.device("meta"):
        model = iwslt14.recipe("paper").model()
    config = model.config
    assert (config.dropout, config.attention_dropout, config.activation_dropout) == (0.3, 0, 0)
    assert (config.encoder_attention_heads, config.decoder_attention_heads) == (4, 4)
    assert config.activation_function == "relu"
    encoder, decoder = 2_102_784, 3_154_432  # a layer of fairseq's each, norms and biases included
    count = sum(p.numel() for p in model.parameters())
    assert (
        count == (8_848 + 6_632) * 512 + 6 * (encoder + decoder) + 2 * 1024
    )  # two last norms: norms are first
    assert round(count / 1e6, 2) == 39.47


@pytest.mark.slow
def test_the_papers_translator_takes_two_steps():
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
