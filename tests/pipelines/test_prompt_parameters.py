"""What stage prompts refuses, by name."""

import pytest

from pipelines.parameters import load_parameters
from pipelines.places import read_facts
from pipelines.prompt_table import read_prompts
from pipelines.stages.prompts import PromptParameters


def test_missing_inputs_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="run the prompts stage first"):
        read_prompts(tmp_path, "train")
    with pytest.raises(ValueError, match="Run the pair stage"):
        read_facts(tmp_path)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ("{sources: [{kind: chat, name: s}], sede: 1}", r"unknown key 'sede'\. Did you mean 'seed'"),
        ("{sources: [{kind: chat, name: s, colum: a}]}", r"sources\[0\]: unknown key 'colum'\. Did you mean 'column'"),
        ("{sources: []}", "sources must name at least one"),
        ("{sources: [{kind: chat, name: s}], test_share: 0.2}", "unknown key 'test_share'"),
        ("{sources: [{kind: chat, name: s}, {kind: chat, name: s}]}", "different names"),
        ("{sources: [{kind: chat, name: s}], min_tokens: 9, max_tokens: 8}", "min_tokens <= max_tokens"),
    ],
)
def test_wrong_parameters_are_refused(tmp_path, section, message):
    path = tmp_path / "params.yaml"
    path.write_text(f"pairs: {{p: {{prompts: {section}}}}}")
    with pytest.raises(ValueError, match=message):
        load_parameters(PromptParameters, "p", "prompts", path)
