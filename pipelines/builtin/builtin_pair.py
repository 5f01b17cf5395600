"""The built-in pair: tokenizer, target and distilled draft, trained from scratch on the built-in corpus, then inflated.

Both models serve in a larger shape with the small one's function: acceptance is that of the small pair, the cost ratio a real
pair's (`pipelines.builtin.inflation`).
"""

import dataclasses
import hashlib
import inspect
import json
import platform
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from pipelines.builtin import language_model, llama_forward, muon
from pipelines.builtin.corpus import Document, Shares, builtin_shares, manifest_hash
from pipelines.builtin.inflation import InflatedDraft, InflatedShape, inflate
from pipelines.builtin.language_model import Recipe, Shape, held_out_loss, new_model, train
from pipelines.outputs import file_sha256, replacing, write_json
from runtime.device import native_dtype

SMALL, SMALL_DRAFT = "small", "small_draft"  # folders of the trained target and draft
RECORD = "training.json"  # beside a finished model: what it was trained with and how that went
TRAINING_CODE = (language_model, llama_forward, muon)  # a model trained by other code is not the same model
END_OF_TEXT = "<|endoftext|>"  # id 0; stands between documents, so it is both the first and the last token of a text
PRE_TOKENS = r"\n[ \t]*| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|[^\S\n]+(?!\S)|[^\S\n]+"


@dataclass(frozen=True)
class ModelParameters:
    """One model of the pair."""

    shape: Shape
    training: Recipe


@dataclass(frozen=True)
class InflatedPair:
    """The shapes that both models serve in."""

    target: InflatedShape
    draft: InflatedDraft


@dataclass(frozen=True)
class BuiltinParameters:
    """Everything the built-in pair depends on; ``threads`` because sums are ordered by it."""

    seed: int
    threads: int
    vocabulary: int
    shares: Shares
    target: ModelParameters
    draft: ModelParameters
    inflated: InflatedPair

    def __post_init__(self) -> None:
        if self.target.training.context != self.draft.training.context:
            raise ValueError("target and draft must be trained with the same context.")
        if not self.shares.pair > 0:
            raise ValueError("shares.pair must be above 0: the models are trained on its documents.")

    def shapes(self) -> dict[str, InflatedShape]:
        """The shapes that both models serve in."""
        target = self.inflated.target
        draft = self.inflated.draft.shape(target, self.vocabulary, self.draft.shape.feed_forward)
        return {"target": target, "draft": draft}

    def configs(self) -> dict[str, LlamaConfig]:
        """The models in them."""
        context = self.target.training.context
        return {name: shape.config(self.vocabulary, context) for name, shape in self.shapes().items()}


def train_builtin_pair(
    parameters: BuiltinParameters, folder: Path, device: torch.device
) -> tuple[dict[str, Any], dict[str, float | None]]:
    """Write ``tokenizer/``, the trained ``small/`` and ``small_draft/``, and both inflated to ``target/`` and ``draft/``.

    A model that an earlier, interrupted run has finished with the same parameters and training code is kept. Returns what the run
    is a function of and what came out, and wall-clock seconds by model (None where it was kept).
    """
    torch.set_num_threads(parameters.threads)
    documents = builtin_shares(parameters.shares)
    slices = {share: Counter(sorted(document.slice for document in some)) for share, some in documents.items()}
    for share, counts in slices.items():
        print(f"corpus, share {share}: {counts.total()} documents, {dict(counts)}")
    manifest, learned, test = manifest_hash(documents), documents["pair"], documents["test"]
    tokenizer = train_tokenizer((document.text for document in learned), parameters.vocabulary)
    tokenizer.save_pretrained(folder / "tokenizer")
    order = torch.randperm(len(learned), generator=torch.Generator().manual_seed(parameters.seed)).tolist()
    streams = {"train": token_stream((learned[index] for index in order), tokenizer)}
    for name in sorted({document.slice for document in test}):
        streams[name] = token_stream((d for d in test if d.slice == name), tokenizer)
    dtype = native_dtype(device)
    base = {
        "seed": parameters.seed,
        "threads": parameters.threads,
        "dtype": str(dtype).removeprefix("torch."),
        "device": device.type,
        "torch": torch.__version__.split("+")[0],
        "recipe": hashlib.sha256("".join(map(inspect.getsource, TRAINING_CODE)).encode()).hexdigest(),
        "corpus": manifest,
        "vocabulary": parameters.vocabulary,
    }
    trainer = _Trainer(folder, tokenizer, streams, dtype, device, parameters.seed)
    target = trainer.model(SMALL, parameters.target, base, teacher=None)
    shapes = parameters.shapes()
    trainer.save_inflated(target, shapes["target"], "target")
    teacher = file_sha256(folder / SMALL / "model.safetensors")
    draft = trainer.model(SMALL_DRAFT, parameters.draft, base | {"teacher": teacher}, teacher=target)
    trainer.save_inflated(draft, shapes["draft"], "draft")
    facts = {
        "corpus": {
            "manifest": manifest,
            "shares": dataclasses.asdict(parameters.shares),
            "documents": slices,
            "tokens": {name: len(stream) for name, stream in streams.items()},
            "python": platform.python_version(),
            "trained_on": [document.id for document in learned],
        },
        "training": training_facts(folder),
        "inflated": {name: dataclasses.asdict(shape) for name, shape in shapes.items()},
    }
    return facts, trainer.seconds


def training_facts(folder: Path) -> dict[str, Any]:
    """What the two models were trained with, and their held-out losses."""
    return {name: json.loads((folder / name / RECORD).read_text()) for name in (SMALL, SMALL_DRAFT)}


def token_stream(documents: Iterable[Document], tokenizer: PreTrainedTokenizerFast) -> Tensor:
    """Token ids of the documents one after the other, the end-of-text token before each and after the last."""
    end = tokenizer.eos_token_id
    stream = [end]
    for document in documents:
        stream += tokenizer(document.text)["input_ids"]
        stream.append(end)
    return torch.tensor(stream)


@dataclass
class _Trainer:
    folder: Path
    tokenizer: PreTrainedTokenizerFast
    streams: dict[str, Tensor]
    dtype: torch.dtype
    device: torch.device
    seed: int
    seconds: dict[str, float | None] = dataclasses.field(default_factory=dict)

    def model(
        self, name: str, parameters: ModelParameters, base: dict[str, Any], teacher: LlamaForCausalLM | None
    ) -> LlamaForCausalLM:
        """The trained model, from ``folder`` where it is finished there, else trained and saved there."""
        inputs = base | dataclasses.asdict(parameters)
        path = self.folder / name
        record = json.loads((path / RECORD).read_text()) if (path / RECORD).is_file() else {}
        if record.get("inputs") == inputs:
            print(f"{name}: finished earlier with the same parameters, kept")
            self.seconds[name] = None
            return LlamaForCausalLM.from_pretrained(path, dtype=self.dtype).to(self.device)
        recipe = parameters.training
        model = new_model(parameters.shape, len(self.tokenizer), recipe.context, self.seed).to(self.device)
        if teacher is not None:
            teacher = teacher.to(self.device)
        training = train(model, self.streams["train"], recipe, self.dtype, self.seed, teacher, name)
        slices = [key for key in self.streams if key != "train"]
        losses = {key: round(held_out_loss(model, self.streams[key], recipe.context), 4) for key in slices}
        print(f"{name}: {training.steps} steps in {training.seconds:.0f} s, held-out loss {losses}")
        facts = {"inputs": inputs, "steps": training.steps, "capped": training.capped, "held_out_loss": losses}
        self._save(model, name, {RECORD: facts})
        self.seconds[name] = round(training.seconds, 1)
        return model

    def save_inflated(self, small: LlamaForCausalLM, shape: InflatedShape, name: str) -> None:
        """Save the small model's function in a larger shape.

        Matrices are stored in ``dtype``, in which they are exact; norms in float32, because their factor sqrt(ds / db) is not
        exact in bfloat16. Loaded in float32, the model equals the small one.
        """
        big = inflate(small.float().cpu(), shape, seed=self.seed)
        for parameter in big.parameters():
            if parameter.ndim == 2:
                parameter.data = parameter.data.to(self.dtype)
        self._save(big, name, {})

    def _save(self, model: LlamaForCausalLM, name: str, records: Mapping[str, Any]) -> None:
        with replacing(self.folder / name) as partial:
            model.save_pretrained(partial)
            self.tokenizer.save_pretrained(partial)
            for file, record in records.items():
                write_json(partial / file, record)


def train_tokenizer(texts: Iterable[str], vocabulary: int) -> PreTrainedTokenizerFast:
    """Byte-level BPE of ``vocabulary`` tokens, the special one included; a newline and the indent after it are one unit."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PRE_TOKENS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() != vocabulary:
        raise ValueError(
            f"the corpus yields {tokenizer.get_vocab_size()} tokens, not the {vocabulary} requested: use a smaller vocabulary."
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=END_OF_TEXT, eos_token=END_OF_TEXT, clean_up_tokenization_spaces=False
    )
