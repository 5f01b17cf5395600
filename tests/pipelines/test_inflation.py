import json

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from pipelines import small_pair
from pipelines.inflation import LAYER, STEP, InflatedDraft, InflatedShape, cost, inflate
from runtime import ModelPair
from tests.toys import tiny_llama

VOCABULARY = 61
SAME = {"hidden": 32, "layers": 2, "heads": 4, "head_dim": 8, "feed_forward": 48}
EVERYTHING = {"hidden": 96, "layers": 4, "heads": 32, "kv_heads": 8, "head_dim": 24, "feed_forward": 70, "vocab": 80}


@pytest.fixture(autouse=True)
def norms_in_their_own_dtype(monkeypatch):
    """Hugging Face computes norms in float32 whatever the dtype, which would hide errors below 1e-5."""

    def forward(self, x):
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)

    monkeypatch.setattr(LlamaRMSNorm, "forward", forward)


def small_model(kv_heads: int, tied: bool) -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 48}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": kv_heads, "head_dim": 8, "tie_word_embeddings": tied}
    options = {"max_position_embeddings": 64, "initializer_range": 0.4, "eos_token_id": None, "rms_norm_eps": 1e-3}
    model = LlamaForCausalLM(LlamaConfig(**sizes, **options)).double().eval()
    for parameter in model.parameters():
        if parameter.ndim == 1:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    return model


def enlarged(small: LlamaForCausalLM, vocab: int | None = None, **shape: int) -> LlamaForCausalLM:
    return inflate(small, InflatedShape(**shape), vocab)


def logits(model: LlamaForCausalLM) -> torch.Tensor:
    tokens = torch.randint(VOCABULARY, (2, 40), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return model(tokens).logits


CHANGES = [{"layers": 5}, {"feed_forward": 100}, {"hidden": 128}, {"hidden": 96}, {"heads": 32, "kv_heads": 8}]
CHANGES += [{"head_dim": 16}, {"hidden": 64, "vocab": 80}]


@pytest.mark.parametrize(
    ("change", "kv_heads", "tied"),
    [
        *((change, 2, True) for change in CHANGES),
        *((EVERYTHING, kv_heads, tied) for kv_heads in (4, 2, 1) for tied in (True, False)),
    ],
    ids=str,
)
def test_the_function_is_preserved(change, kv_heads, tied):
    small = small_model(kv_heads, tied)
    big = enlarged(small, **SAME | {"kv_heads": kv_heads} | change)
    expected, found = logits(small), logits(big)
    assert (found[..., :VOCABULARY] - expected).abs().max() < 1e-9
    assert found.softmax(-1)[..., VOCABULARY:].sum() < 1e-30


def test_an_unscaled_eps_is_caught():
    small = small_model(2, tied=True)
    big = enlarged(small, **EVERYTHING)
    for module in big.modules():
        if isinstance(module, LlamaRMSNorm):
            module.variance_epsilon = small.config.rms_norm_eps
    assert (logits(big)[..., :VOCABULARY] - logits(small)).abs().max() > 1e-3


def test_greedy_text_is_the_same_after_saving(tmp_path):
    small = small_model(2, tied=True).float()
    enlarged(small, **EVERYTHING).save_pretrained(tmp_path)
    big = LlamaForCausalLM.from_pretrained(tmp_path)
    prompt = torch.tensor([[5, 9, 2]])
    settings = {"max_new_tokens": 48, "do_sample": False, "attention_mask": torch.ones_like(prompt), "pad_token_id": 0}
    assert small.generate(prompt, **settings).tolist() == big.generate(prompt, **settings).tolist()


def test_the_last_hidden_states_are_the_small_models():
    small = small_model(4, tied=True)
    big = enlarged(small, **SAME | {"kv_heads": 4, "hidden": 64, "layers": 5})
    tokens = torch.arange(20)[None]
    with torch.no_grad():
        states = small(tokens, output_hidden_states=True).hidden_states
        big_states = big(tokens, output_hidden_states=True).hidden_states
    for own, inflated in zip(states[:-1], big_states[3:-1], strict=True):
        assert (inflated[..., :32] - own).abs().max() < 1e-9
        assert inflated[..., 32:].abs().max() == 0


def test_weights_that_cannot_matter_are_random_and_seeded():
    small = small_model(4, tied=True)
    one, two = (enlarged(small, **SAME | {"kv_heads": 4, "layers": 3}) for _ in range(2))
    weights = [model.model.layers[0].mlp.gate_proj.weight for model in (one, two)]
    assert torch.equal(*weights) and weights[0].std() > 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden": 16}, "hidden 16 is below 32"),
        ({"heads": 6, "kv_heads": 4}, "no multiple"),
        ({"head_dim": 12}, "head_dim 12 is no multiple of 8"),
        ({"vocab": 80}, "needs a larger hidden"),
    ],
)
def test_shapes_that_cannot_hold_the_model_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        enlarged(small_model(4, tied=True), **SAME | {"kv_heads": 4} | change)
    with pytest.raises(ValueError, match="float16"):  # whose range a larger vocabulary's head exceeds
        enlarged(small_model(4, tied=True).half(), **SAME | {"kv_heads": 4, "hidden": 64, "vocab": 80})


TARGET = InflatedShape(hidden=512, layers=12, heads=8, kv_heads=8, head_dim=64, feed_forward=1408)
WORDS, LEAST = 2048, 512


def draft(ratio):
    return InflatedDraft(hidden=448, layers=2, heads=7, kv_heads=7, head_dim=64, cost_ratio=ratio)


@pytest.mark.parametrize("ratio", [6.0, 7.0, 8.0])
def test_the_draft_costs_what_the_ratio_says_up_to_a_step_of_its_feed_forward(ratio):
    shape = draft(ratio).shape(TARGET, WORDS, LEAST)
    step = 3 * shape.hidden * shape.layers * STEP / 2
    assert abs(cost(TARGET, WORDS) / ratio - cost(shape, WORDS)) <= step
    assert shape.feed_forward % STEP == 0
    assert cost(TARGET, WORDS) == 12 * (4 * 512 * 512 + 3 * 512 * 1408 + LAYER) + 2048 * 512


def test_a_ratio_out_of_reach_is_refused_with_the_largest_that_fits():
    with pytest.raises(ValueError, match=r"cost_ratio 15.0 needs .* the small draft has 512.* at most 8\.\d fits"):
        draft(15.0).shape(TARGET, WORDS, LEAST)
    with pytest.raises(ValueError, match="must be > 1, got 1.0"):
        draft(1.0)


@pytest.fixture
def files(monkeypatch):
    """Sources that say the same over and over, and one that nobody learns."""
    learned = {f"{number}.py": f"def number_{number}():\n    return {number}\n" * 40 for number in range(9)}
    unseen = {"other.py": "import this\n"}
    monkeypatch.setattr(small_pair, "source_files", lambda: (learned, unseen))
    monkeypatch.setattr(small_pair, "SHAPES", {"target": (32, 2, 2, 48), "draft": (16, 1, 2, 32)})
    monkeypatch.setattr(small_pair, "VOCABULARY", 300)
    monkeypatch.setattr(small_pair, "CONTEXT", 32)


def test_the_pair_decodes_and_learned_what_it_read(files, tmp_path, capsys):
    small_pair.main([str(tmp_path), "--steps", "60"])
    pair = ModelPair.load(tmp_path / "target", tmp_path / "draft")
    losses = [float(line.split()[2]) for line in capsys.readouterr().out.splitlines() if ": loss" in line]
    assert len(losses) == 2 and max(losses) < 3, "a law over 300 tokens that knows nothing has 5.7"
    assert pair.draft.vocabulary_size == pair.target.vocabulary_size == 300
    assert [json.loads(line)["id"] for line in (tmp_path / "documents.jsonl").read_text().splitlines()] == ["other.py"]


def test_a_draft_learns_its_teachers_law(files):
    """Not the text: the teacher says something else."""
    teacher, draft = tiny_llama(300, 1, hidden=16, layers=1), small_pair.new_model(16, 1, 2, 32)
    with torch.no_grad():
        teacher.lm_head.weight.mul_(20)
    tokens = torch.randint(300, (2000,), generator=torch.Generator().manual_seed(0))

    def apart():
        with torch.no_grad():
            law, own = (model(tokens[None, :64]).logits.log_softmax(-1) for model in (teacher, draft))
        return float((law.exp() * (law - own)).sum(-1).mean())

    before = apart()
    small_pair.train("draft", draft, tokens, 80, teacher)
    assert apart() < before / 2
