"""``draftwright generate``: text and statistics from any decoder, nothing imported but the runtime."""

import io
import json
import shutil
import subprocess
import sys

import pytest

from pipelines.cli import main
from runtime import ModelPair
from tests.bundles import random_bundle
from tests.runtime.test_pair_and_build import tokenizer
from tests.toys import tiny_llama

WORDS = [f"w{index}" for index in range(32)]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    for name, layers in (("target", 2), ("draft", 1)):
        tiny_llama(layers=layers).save_pretrained(folder / name)
        tokenizer(WORDS).save_pretrained(folder / name)
    return folder


def arguments(models, *more):
    names = ["--target", str(models / "target"), "--draft", str(models / "draft")]
    return [
        "generate",
        *names,
        "--prompt",
        "w1",
        "--dtype",
        "float32",
        "--device",
        "cpu",
        "--max-new-tokens",
        "12",
        *more,
    ]


def as_json(capsys, argv):
    main([*argv, "--json"])
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_speculative_and_plain_text_agree(models, capsys):
    speculative = as_json(capsys, arguments(models))
    plain = as_json(capsys, arguments(models, "--method", '{"method": "autoregressive"}'))
    assert speculative["tokens"] == plain["tokens"] and speculative["new_tokens"] == 12
    assert plain["block_efficiency"] == 1 and speculative["block_efficiency"] >= 1


TEMPLATES = {
    "{{ raise_exception('say\\nmore') }}": "say more",
    "{{ 'n' + messages|length }}": "can only concatenate",
    "w3 w4": "it leaves out what is said last",
    "{% for m in messages %}{{ m.content[0].text }}{% endfor %}w3 {{ nowhere.x }}": ".*nowhere",
}


def test_a_question_is_asked_in_the_chat_template(models, tmp_path, capsys):
    """The template says all that stands around the message; without one the remedy is named."""
    shutil.copytree(models, tmp_path / "chat")
    made = tokenizer(WORDS)
    made.chat_template = "{% for one in messages %}w3 {{ one.content }} w4 {% endfor %}"
    made.save_pretrained(tmp_path / "chat" / "target")
    question = as_json(capsys, [*arguments(tmp_path / "chat"), "--chat"])
    spelt = as_json(capsys, [*arguments(models), "--prompt", "w3 w1 w4"])
    assert question["tokens"] == spelt["tokens"] != as_json(capsys, arguments(models))["tokens"]
    with pytest.raises(SystemExit, match="leave --chat out"):
        main([*arguments(models), "--chat"])
    for template, reason in TEMPLATES.items():
        made.chat_template = template
        made.save_pretrained(tmp_path / "chat" / "target")
        with pytest.raises(SystemExit, match=f"chat template refuses its messages: {reason}") as error:
            main([*arguments(tmp_path / "chat"), "--chat"])
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("codec", ["utf-8", "utf-8-sig", "utf-16", "latin-1"])
def test_a_prompt_is_read_in_utf8_or_as_its_mark_says(models, monkeypatch, capsys, codec):
    expected = as_json(capsys, arguments(models))["tokens"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(("w1" + "ü" * (codec == "latin-1")).encode(codec))))
    if codec != "latin-1":
        assert as_json(capsys, [*arguments(models), "--prompt", "-"])["tokens"] == expected
        return
    for given in ("-", "w1 \udcfc"):
        with pytest.raises(SystemExit, match="the prompt: no text in UTF-8.*0xfc"):
            main([*arguments(models), "--prompt", given])


@pytest.mark.parametrize("method", ["progressive_tree", "lookahead", "self_draft"])
def test_a_target_alone(models, capsys, method):
    alone = ["generate", "--target", str(models / "target"), "--prompt", "w1", "--dtype", "float32", "--device", "cpu"]
    plain = as_json(capsys, [*alone, "--method", '{"method": "autoregressive"}'])
    own = as_json(capsys, [*alone, "--method", json.dumps({"method": method})])
    assert own["tokens"] == plain["tokens"] and "hit_rate" in own and "hit_rate" not in plain
    with pytest.raises(
        SystemExit,
        match="needs a draft model; this pair has none. Without one: drafter .*, methods autoregressive, prog",
    ):
        main(alone)


def test_bundle(models, tmp_path, capsys):
    pair = ModelPair.load(models / "target", models / "draft", dtype="float32", device="cpu")
    bundle = random_bundle(tmp_path / "hrad", pair)
    plain = as_json(capsys, arguments(models, "--method", '{"method": "autoregressive"}'))
    monitored = arguments(models, "--bundle", str(bundle), "--monitor", str(tmp_path / "records"))
    assert as_json(capsys, monitored)["tokens"] == plain["tokens"]
    assert json.loads((tmp_path / "records").read_text())["emitted"] == 12


def test_text_streams_to_standard_output(models, capsys):
    main(arguments(models))
    captured = capsys.readouterr()
    assert captured.out.startswith("w") and "block_efficiency" in captured.err


def test_pair_folder(models, tmp_path, capsys):
    place = {name: str(models / name) for name in ("target", "draft")}
    facts = {**place, "tokenizer": place["target"], "revisions": {"target": None, "draft": None}}
    facts |= {"dtype": "float32"}
    (tmp_path / "pair.json").write_text(json.dumps(facts))
    out = as_json(capsys, ["generate", str(tmp_path), "--prompt", "w1", "--dtype", "float32", "--max-new-tokens", "12"])
    assert out["tokens"] == as_json(capsys, arguments(models))["tokens"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--method", "{"], "--method is not JSON"),
        (["--method", "[]"], "must be a JSON object"),
        (["--method", '{"method": "magic"}'], "unknown method 'magic'"),
        (["--prompt", ""], "the prompt is empty"),
        (["--max-new-tokens", "9999"], "do not fit the pair's context of 256"),
        (["--monitor", "records"], "can be compared with: name its --bundle"),
        (
            ["--bundle", "b", "--method", '{"method": "autoregressive"}'],
            "--bundle b holds a decoder, and --method names another",
        ),
        (["--device", "cuda:99"], "device 'cuda:99' cannot be used here"),
        (["--bundle", "nowhere"], "nowhere is not a controller bundle"),
    ],
)
def test_mistakes_end_with_one_line(models, more, message):
    with pytest.raises(SystemExit, match=message):
        main(arguments(models, *more))


def test_imports_nothing_but_the_runtime_and_of_it_what_runs(models):
    code = (
        "import sys, pipelines.cli\n"
        f"pipelines.cli.main({arguments(models)!r})\n"
        "banned = {'lightning', 'mlflow', 'dvc', 'imblearn', 'datasets', 'matplotlib', 'trace_collection',"
        " 'predictors.training', 'pipelines.drafter', 'pipelines.inflation'}\n"
        "assert not banned & set(sys.modules), banned & set(sys.modules)\n"
        "own = [name for name in sys.modules if name.partition('.')[0] in ('pipelines', 'predictors', 'runtime')]\n"
        "assert len(own) <= 75, sorted(own)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
