"""What every measuring stage opens with."""

import hashlib
import re
import subprocess
from dataclasses import dataclass

import pytest

from pipelines.measuring import bench, provenance
from pipelines.measuring.bench import open_bench
from pipelines.prompt_table import FILE, write_prompts
from tests.pipelines.toy_bench import toy_bench, toy_prompts


@dataclass(frozen=True)
class Config:
    threads: int = 1
    gammas: tuple[int, ...] = (1, 2)


CONFIG = Config()


def fingerprint(args, config=Config(), **hashes):
    return open_bench(args, config, {"test": 2}, hashes).log.path.read_text()


def test_a_bench_holds_the_first_prompts_and_says_where_it_stands(tmp_path):
    bench = open_bench(toy_bench(tmp_path, "s", {}), CONFIG, {"validation": 1, "test": 3})
    prompts = {split: [prompt.id for prompt in some] for split, some in bench.prompts.items()}
    assert prompts == {"validation": ["validation-0"], "test": ["test-0", "test-1", "test-2"]}
    assert bench.folder == tmp_path / "output" / "toy-1c"
    origin = bench.origin("p")
    assert (origin["pair"], origin["threads"]) == ("p", 1)
    assert origin["models"] == {name: {"dtype": "float32", "forward": "packed"} for name in ("target", "draft")}
    assert bench.pair.target.whole and bench.pair.draft.whole, "Hugging Face's own forward is measured, too"
    assert origin["parameters"] == {"threads": 1, "gammas": (1, 2)}


def test_an_interrupted_bench_goes_on_and_one_of_other_inputs_starts_anew(tmp_path, capsys):
    args = toy_bench(tmp_path, "s", {})
    open_bench(args, CONFIG, {"test": 2}).log.once("block", lambda: [{"seconds": 1.0}])
    assert open_bench(args, CONFIG, {"test": 2}).log.resumed == 1
    assert re.search(r"after (\d+)", capsys.readouterr().out)[1] == "1"
    assert open_bench(args, CONFIG, {"test": 3}).log.resumed == 0  # other prompts
    with pytest.raises(ValueError, match="has no train prompts"):
        open_bench(args, CONFIG, {"test": 2, "train": 2})


@pytest.mark.parametrize("change", ["parameters", "prompts", "pair", "device", "hash"])
def test_the_fingerprint_covers_every_input(tmp_path, change):
    args = toy_bench(tmp_path, "s", {})
    before = fingerprint(args)
    assert fingerprint(args) == before
    config, hashes = CONFIG, {}
    if change == "parameters":
        config = Config(gammas=(1,))
    elif change == "prompts":
        write_prompts(args.prompts / FILE, toy_prompts(9)[5:])
    elif change == "pair":
        facts = args.pair_folder / "pair.json"
        facts.write_text(facts.read_text().replace('"pair": "p"', '"pair": "q"'))
    elif change == "device":
        args.device.write_text(args.device.read_text().replace('"cores": 1', '"cores": 2'))
    else:
        hashes = {"bundle_sha256": "0"}
    assert fingerprint(args, config, **hashes) != before


def test_the_code_hash_covers_real_files(tmp_path, monkeypatch):
    before = provenance.source_hash(bench.MEASURED_CODE)
    assert before != hashlib.sha256().hexdigest() and before == provenance.source_hash(bench.MEASURED_CODE)
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    (tmp_path / "code").mkdir()
    with pytest.raises(AssertionError, match="holds no Python files"):
        provenance.source_hash(["code"])
    (tmp_path / "code" / "a.py").write_text("x = 1")
    one = provenance.source_hash(["code"])
    (tmp_path / "code" / "a.py").write_text("x = 2")
    assert provenance.source_hash(["code"]) != one
    two = provenance.source_hash(["code"], but="code/training")
    (tmp_path / "code" / "training").mkdir()
    (tmp_path / "code" / "training" / "b.py").write_text("x = 3")
    assert provenance.source_hash(["code"], but="code/training") == two != provenance.source_hash(["code"])


def git(folder, *arguments):
    who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    made = subprocess.run(["git", *who, "-C", folder, *arguments], check=True, capture_output=True, text=True)
    return made.stdout.strip()


@pytest.fixture
def copied(tmp_path, monkeypatch):
    """A repository, and the module as a file of a copy in it."""
    copy = tmp_path / "copy" / "provenance.py"
    copy.parent.mkdir()
    copy.write_text("")
    (tmp_path / "other").write_text("")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "other")
    git(tmp_path, "commit", "--quiet", "--message=one")
    monkeypatch.setattr(provenance, "ROOT", copy.parent)
    monkeypatch.setattr(provenance, "__file__", str(copy))
    return tmp_path


def test_a_repository_around_a_copy_gives_no_commit(copied, monkeypatch, tmp_path_factory):
    assert provenance.provenance({})["commit"] is None
    git(copied, "add", "copy")
    git(copied, "commit", "--quiet", "--message=two")
    own = git(copied, "rev-parse", "HEAD")
    assert provenance.provenance({})["commit"] == own, "once it is the repository's own"
    monkeypatch.setenv("GIT_DIR", str(tmp_path_factory.mktemp("empty")))
    assert provenance.provenance({})["commit"] == own, "a hook of another repository does not decide"


@pytest.mark.parametrize("path", ["", "nowhere"])
def test_without_git_there_is_no_commit(monkeypatch, tmp_path, path):
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    monkeypatch.setenv("PATH", path and str(tmp_path / path))
    assert provenance.provenance({})["commit"] is None
