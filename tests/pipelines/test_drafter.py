"""Drafters trained for a target: what training computes is what the runtime serves, and it learns."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import save_file

from pipelines.cli import main
from pipelines.drafter.network import DrafterNetwork
from pipelines.drafter.recipe import DrafterRecipe
from pipelines.drafter.texts import SETTINGS, collect, shortened
from pipelines.drafter.training import Muon, orthogonalise, padded, train, vocabulary
from pipelines.places import read_pair
from pipelines.stages.drafter import layer_config, tapped_layers, written_config
from runtime import ModelPair, build_decoder
from runtime.eagle3.checkpoint import read_checkpoint
from tests.eagle3 import Reference
from tests.greedy import greedy_text
from tests.toys import tiny_llama

LAYERS = (1, 2, 3)
PROMPTS = [[3, 1, 4, 1, 5], [9, 2, 6], [5, 3, 5, 8, 9, 7], [9, 3], [2, 3, 8, 4, 6], [2, 6, 4]]


@pytest.fixture(scope="module")
def target():
    return ModelPair(tiny_llama(seed=3, layers=4), forward="compact").target


def untrained(target, ids):
    torch.manual_seed(0)
    model = target.model
    embedding, head = model.get_input_embeddings().weight.detach(), model.lm_head.weight.detach()
    network = DrafterNetwork(layer_config(model.config), torch.tensor(ids), len(LAYERS), embedding, head)
    for name, parameter in network.named_parameters():
        parameter.data += 0.1 * torch.randn_like(parameter) if "norm" in name else 0
    return network


def saved(network, target, folder):
    folder.mkdir(exist_ok=True)
    config = written_config(len(network.ids_U), target.model.config, LAYERS, torch.float32)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(network.tensors(torch.float32), folder / "model.safetensors")
    return read_checkpoint(folder)


def test_every_depth_of_training_is_what_the_runtime_drafts(target, tmp_path):
    network = untrained(target, range(1, 30, 2))
    text = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]
    with torch.no_grad():
        hidden = target.model(torch.tensor([text]), output_hidden_states=True).hidden_states
        states = torch.cat([hidden[layer] for layer in LAYERS], -1)
        logits = network(states, torch.tensor([[*text[1:], 0, 0, 0]]), 3)
    reference = Reference(saved(network, target, tmp_path / "d"), target.model)
    for place in range(5):
        laws = reference.laws(text[: place + 2], text[place + 2 : place + 4])
        for depth in range(3):
            torch.testing.assert_close(logits[depth][0, place], laws[depth][network.ids_U], atol=2e-5, rtol=1e-4)


def test_texts_are_collected_once_and_hold_the_targets_states(target, tmp_path):
    texts = collect(target, PROMPTS, LAYERS, 8, 0, tmp_path / "texts")
    assert [text.temperature for text in texts] == [SETTINGS[place % 2].temperature for place in range(len(PROMPTS))]
    assert [text.tokens[: text.start].tolist() for text in texts] == PROMPTS
    with torch.no_grad():
        hidden = target.model(texts[1].tokens[None, :-1], output_hidden_states=True).hidden_states
    torch.testing.assert_close(texts[1].hidden_NKC[:, 1].float(), hidden[LAYERS[1]][0], atol=0.02, rtol=0.02)
    (tmp_path / "texts" / "00000.safetensors").touch()
    again = collect(target, PROMPTS, LAYERS, 8, 1, tmp_path / "texts")  # other draws: what is there stays
    assert all(torch.equal(one.tokens, other.tokens) for one, other in zip(texts, again, strict=True))
    assert shortened(texts[2], 2).tokens.tolist() == texts[2].tokens.tolist()[4:]


def test_a_drafter_is_judged_on_answers(target, tmp_path):
    text = collect(target, PROMPTS[:1], LAYERS, 8, 0, tmp_path / "texts")[0]
    learned, judged = (padded([text], 3, answers)[3] for answers in (False, True))
    assert learned.all() and judged[0].tolist() == [False] * (len(PROMPTS[0]) - 1) + [True] * 8


def test_a_drafter_learns_goes_on_after_an_interruption_and_is_saved_whole(target, tmp_path):
    texts = collect(target, PROMPTS * 6, LAYERS, 24, 0, tmp_path / "texts")
    ids = vocabulary(texts, 24, 32)
    assert len(ids) == 24 and ids.tolist() == sorted(set(ids.tolist()))
    rates = {"matrix_lr": 0.02, "vector_lr": 0.01, "warm_up": 2}
    recipe = DrafterRecipe(train="eagle3", vocabulary=24, positions=200, **rates)
    found = {}
    for name, epochs in (("whole", 6), ("halves", 3), ("halves", 6)):
        network = untrained(target, ids.tolist())
        part = replace(recipe, epochs=epochs)
        found[name] = train(network, part, texts, texts, tmp_path / name, 0, native=False)
    assert found["whole"]["agreement_1"] > 0.5
    assert found["halves"]["steps"] == found["whole"]["steps"]
    made = saved(network, target, tmp_path / "d")
    assert torch.equal(made.target_ids, ids)


CHAT = "{% for one in messages %}<|{{ one['role'] }}|>{{ one['content'] }}{% endfor %}<|assistant|>"


PARAMETERS = """
models:
  draft: {train: eagle3, prompts: 12, validation: 2, max_new_tokens: 16, vocabulary: 64, epochs: 1, threads: 1}
  <<: {target: target, dtype: float32, check_memory: false}
prompts:
  shares: {drafter: 0.5, train: 0.2, validation: 0.1, test: 0.1, reserve: 0.1}
  <<: {drafter: 12, train: 4, validation: 4, test: 4, reserve: 2, longest: 200}
machine: {threads: 1}
mix: {}
"""


def test_a_pair_trains_its_drafter_and_decodes_with_it(tokenizer, workspace):
    """Stages pair, prompts and drafter, as a pair's parameters name them; then every later stage finds the pair whole."""
    tiny_llama(len(tokenizer), seed=3, layers=7).save_pretrained("target")
    tokenizer.save_pretrained("target")
    sections = yaml.safe_load(PARAMETERS)
    sections["prompts"]["sources"] = [{"name": "chat", "kind": "chat", "chat_template": CHAT}]
    Path("params.yaml").write_text(yaml.safe_dump({"pairs": {"p": sections}}))
    assert main(["pair", "--pair", "p", "data/p/pair"]) in (None, 0)
    assert main(["prompts", "--pair", "p", "data/p/pair", "data/p/prompts"]) in (None, 0)
    with pytest.raises(ValueError, match="holds no drafter yet"):
        _ = read_pair(Path("data/p/pair")).models
    assert main(["drafter", "--pair", "p", "data/p/pair", "data/p/prompts", "data/p/drafter"]) in (None, 0)
    facts = json.loads(Path("data/p/drafter/drafter.json").read_text())
    assert facts["trained"] and facts["texts"] == 12 and 0 < facts["validation"]["coverage"] <= 1
    assert not Path("data/p/drafter/work").exists()
    pair = ModelPair.load(**read_pair(Path("data/p/pair")).models, dtype="float32")
    decoder = build_decoder(pair, {"method": "speculative", "drafter": {"kind": "chain", "gamma": 3}})
    out = decoder.generate([5, 6, 7], max_new_tokens=12, eos_token_id=())
    assert out.tokens == greedy_text(tiny_llama(len(tokenizer), seed=3, layers=7), [5, 6, 7], 12)


@pytest.mark.parametrize("depth", [1, 6])
def test_a_target_of_few_layers_has_no_drafter_trained(depth):
    with pytest.raises(ValueError, match=f"{depth} layers, and an EAGLE-3 drafter is trained for 7 or more"):
        tapped_layers(depth)


def test_muon_equals_torchs_own_in_bfloat16():
    generator = torch.Generator().manual_seed(0)
    shapes = [(12, 20), (20, 12), (12, 12), (12, 20)]
    ours = [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]
    theirs = [matrix.detach().clone().requires_grad_() for matrix in ours]
    optimizers = (
        Muon(ours, lr=0.02, momentum=0.95, weight_decay=0.05, dtype=torch.bfloat16),
        torch.optim.Muon(theirs, lr=0.02, momentum=0.95, weight_decay=0.05),
    )
    for _ in range(4):
        for a, b in zip(ours, theirs, strict=True):
            a.grad = torch.randn(a.shape, generator=generator)
            b.grad = a.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, atol=2e-3, rtol=0)


def test_updates_of_muon_are_nearly_orthogonal():
    matrices = torch.randn(3, 16, 40, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonalise(matrices, 5, torch.float32))
    assert values.min() > 0.4
    assert values.max() < 1.4
