"""The small pair that the GPU script inflates: trained together on few files in little time."""

import json

import pytest
import torch

from pipelines import small_pair
from runtime import ModelPair
from tests.toys import tiny_llama


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
