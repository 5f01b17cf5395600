"""The stage ``measure`` by two workers on Ray, one of whom is killed amid a prompt, beside the same in this process."""

import json
from functools import partial
from types import SimpleNamespace

import pandas as pd
import pytest

from pipelines import measure
from pipelines.measuring.names import DECODES_FILE, FINDINGS, ROUNDS_FILE, WORKER
from pipelines.measuring.tables import read_decodes, read_rounds
from tests.pipelines.scale_tasks import KilledTimer
from tests.pipelines.test_measure import ARMS, PARAMETERS
from tests.pipelines.toy_bench import toy_bench

ray = pytest.importorskip("ray")
LEFT_OUT = ("hrad", "specbranch-2", "confidence-{epsilon}")
FEW = [arm for arm in ARMS if arm["name"] not in LEFT_OUT]
KEY = ["arm", "split", "prompt", "temperature", "repeat"]


@pytest.fixture(scope="module")
def args(tmp_path_factory):
    args = toy_bench(tmp_path_factory.mktemp("many"), "measure", PARAMETERS | {"arms": FEW, "exactness_prompts": 0})
    args.bundles, args.section = args.output.parent / "bundles", "measure"
    return args


@pytest.fixture(scope="module")
def here(args):
    measure.run(args)
    return args.output / "toy-1c"


@pytest.fixture(scope="module")
def spread(args):
    """The folder that two workers filled."""
    output, file = args.output.parent / "measured", args.output.parent / "killed"
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("RAY_ADDRESS", raising=False)
        patch.setattr(measure, "worker", partial(KilledTimer, file))
        try:
            measure.run(SimpleNamespace(**{**vars(args), "output": output, "workers": 2}))
        finally:
            ray.shutdown()
    assert file.exists()
    return output / "toy-1c"


@pytest.fixture(scope="module")
def decodes(spread):
    return pd.DataFrame(read_decodes(spread / DECODES_FILE))


def test_every_prompt_is_of_one_worker_and_has_all_its_arms(spread, decodes):
    assert decodes.groupby(["split", "prompt"])[WORKER].nunique().eq(1).all()
    by_split = decodes.groupby("split")
    assert by_split["prompt"].nunique().to_dict() == {"test": 4, "validation": 2}
    assert 2 <= decodes[WORKER].nunique() <= 4  # who is killed comes back as another process, and both may be
    chosen = {choice["arm"] for choice in json.loads((spread / FINDINGS).read_text())["choices"]}
    always = {"autoregressive", "chain-1", "chain-2"}
    rotating = {"plain_hf_forward", "hf_generate", "hf_assisted"} | chosen - always
    rotating |= {f"{arm}-wall" for arm in chosen if arm.startswith("pearl")}
    blocks = decodes[decodes["split"] == "test"].groupby("block")["arm"].agg(set)
    assert len(blocks) == 8 and all(always <= arms and len(arms) == 6 for arms in blocks)
    assert always < set().union(*blocks) <= always | rotating
    assert any(arms & {"pearl-1-wall", "pearl-2-wall"} for arms in blocks)
    swept = {"autoregressive", "chain-1", "chain-2", "pearl-1", "pearl-2"}
    assert all(arms == swept for arms in decodes[decodes["split"] == "validation"].groupby("block")["arm"].agg(set))


def test_tokens_rounds_and_order_are_those_of_one_process(here, spread, decodes):
    alone = pd.DataFrame(read_decodes(here / DECODES_FILE))
    assert WORKER not in alone and set(decodes) == {*alone, WORKER}
    both = alone.merge(decodes, on=KEY)
    assert len(both[both["split"] == "validation"]) == 2 * 2 * 5 and len(both) >= 20 + 3 * 4 * 2
    for name in ("output", "seed", "led", "block", "tokens", "rounds", "accepted_histogram"):
        assert both[f"{name}_x"].map(str).equals(both[f"{name}_y"].map(str)), name
    swept = both[both["split"] == "validation"]
    assert swept["order_x"].equals(swept["order_y"])
    assert decodes["prompt"].drop_duplicates().tolist() == alone["prompt"].drop_duplicates().tolist()
    assert decodes[decodes["temperature"] == 0]["equals_plain"].all()
    counts = decodes.set_index(["block", "arm"])["rounds"].dropna()
    rounds = pd.DataFrame(read_rounds(spread / ROUNDS_FILE))
    assert (
        rounds[~rounds["prefill"]].groupby(["block", "arm"]).size().sort_index().equals(counts.astype(int).sort_index())
    )
