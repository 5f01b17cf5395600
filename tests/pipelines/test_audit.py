"""``draftwright audit``: modules of the working directory, verdicts by exit code, mistakes in one line."""

import sys

import pytest

from pipelines.cli import main

RULES = """
from runtime.verification.chain import tokenwise
from runtime.verification.outcome import OutcomeLaw


class Parts:
    @staticmethod
    def again(tree, target_probs):
        law = tokenwise(tree, target_probs)
        return OutcomeLaw(law.stop, law.depths, lambda row: target_probs[row])


def unmade():
    raise LookupError("no such\\nthing")


length = 3
"""


@pytest.fixture(autouse=True)
def working_directory(tmp_path, monkeypatch):
    (tmp_path / "my_rules.py").write_text(RULES)
    (tmp_path / "my_typo.py").write_text("def rule(:")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])


def test_a_lossy_rule_exits_with_1(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["audit", "my_rules:Parts.again"])
    assert ended.value.code == 1
    first, second, _ = capsys.readouterr().out.splitlines()
    assert first == "NOT LOSSLESS: my_rules:Parts.again, a verifier, under chains at T=1"
    assert second.startswith("  after [0, 0]: the target draws 0 with 0.7 and 1 with 0.3; this decoder emits 0 with ")


def test_a_lossless_rule_exits_with_0(capsys):
    main(["audit", "runtime.verification:block"])
    assert capsys.readouterr().out.startswith("LOSSLESS: runtime.verification:block, a verifier, in ")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ([], "is no MODULE:NAME, such as"),
        (["my_rules"], "'my_rules' is no MODULE:NAME"),
        (["no_rules:rule"], "ModuleNotFoundError"),
        (["my_typo:rule"], "SyntaxError"),
        (["my_rules:rule"], "AttributeError"),
        (["my_rules:length"], "it is 3. Name a Controller"),
        (["my_rules:unmade"], r"LookupError at .*my_rules.py:\d+: no such thing"),
    ],
    ids=str,
)
def test_mistakes_are_one_line(given, told):
    with pytest.raises(SystemExit, match=f"^draftwright audit: .*{told}") as ended:
        main(["audit", *given])
    assert "\n" not in ended.value.code
