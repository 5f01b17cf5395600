"""What every measuring stage opens with."""

import re
from dataclasses import dataclass

import pytest

from pipelines.measuring.bench import open_bench
from pipelines.prompt_table import FILE, write_prompts
from tests.pipelines.toy_bench import toy_bench, toy_prompts


@dataclass(frozen=True)
class Config:
    threads: int = 1
    gammas: tuple[int, ...] = (1, 2)


CONFIG = Config()


def fingerprint(args, config=Config(), **hashes):
    bench = open_bench(args, config, {"test": 2}, hashes)
    return bench.log.path.read_text()


def test_a_bench_holds_the_first_prompts_and_says_where_it_stands(tmp_path):
    bench = open_bench(toy_bench(tmp_path, "s", {}), CONFIG, {"validation": 1, "test": 3})
    assert {split: [prompt.id for prompt in some] for split, some in bench.prompts.items()} == {
        "validation": ["validation-0"],
        "test": ["test-0", "test-1", "test-2"],
    }
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


def test_a_split_without_prompts_is_refused_by_name(tmp_path):
    with pytest.raises(ValueError, match="has no train prompts"):
        open_bench(toy_bench(tmp_path, "s", {}), CONFIG, {"test": 2, "train": 2})
