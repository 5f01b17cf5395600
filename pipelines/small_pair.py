"""Train the small pair that `pipelines.gpu` inflates: `python -m pipelines.small_pair FOLDER`, a quarter of an hour on two cores.

Two Llamas over a byte-level vocabulary learn the running interpreter's standard library. The draft learns the target's whole law
(distillation). FOLDER receives ``target`` and ``draft``, each with the tokenizer, and ``documents.jsonl``, the files that neither
has seen: prompts for fitting controllers on this pair, as docs/gpu.md shows.
"""

import argparse
import json
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path
from zlib import crc32

import torch
import torch.nn.functional as F
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from tqdm import tqdm
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from pipelines.drafter.training import Muon

END = "<|endoftext|>"  # between files: the first and the last token of a text
PRE_TOKENS = (
    r"\n[ \t]*| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|[^\S\n]+(?!\S)|[^\S\n]+"  # a newline and its indent are one
)
LEFT_OUT = "site-packages", "dist-packages", "idle_test", "pydoc_data", "encodings"
LEAST, UNSEEN = 500, 12  # characters of a file; one file in so many is kept from training
VOCABULARY, CONTEXT, BATCH = 1024, 256, 8
SHAPES = {"target": (256, 3, 4, 704), "draft": (192, 2, 3, 512)}  # hidden size, layers, heads, feed-forward
STEPS = {"target": 1000, "draft": 1000}
RATES, WARM_UP, LAST = (
    (0.02, 0.01),
    30,
    0.02,
)  # of matrices and of the rest; constant to half, then linear to this share


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m pipelines.small_pair", description=__doc__.split("\n\n")[0])
    parser.add_argument("folder", type=Path, help="folder of the pair")
    parser.add_argument("--steps", type=int, help="of each model, for a trial")
    args = parser.parse_args(arguments)
    learned, unseen = source_files()
    tokenizer = new_tokenizer(learned)
    text = "".join(END + one for one in learned.values())
    tokens = torch.tensor(tokenizer(text)["input_ids"])
    print(f"{len(learned)} files of {len(tokens)} tokens to learn, {len(unseen)} unseen")
    args.folder.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps({"id": name, "text": one}) for name, one in unseen.items())
    (args.folder / "documents.jsonl").write_text("\n".join(lines) + "\n")
    teacher = None
    for name, shape in SHAPES.items():
        model = new_model(*shape)
        train(name, model, tokens, args.steps or STEPS[name], teacher)
        for part in (model, tokenizer):
            part.save_pretrained(args.folder / name)
        teacher = teacher or model


def source_files() -> tuple[dict[str, str], dict[str, str]]:
    """The standard library's sources without its tests, by path: those to learn, and those that are kept from it."""
    root = Path(sysconfig.get_paths()["stdlib"])
    found: tuple[dict[str, str], dict[str, str]] = {}, {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        if any(part in LEFT_OUT or part.startswith(("test", "_sysconfigdata")) for part in parts):
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        if len(text) >= LEAST:
            found[crc32("/".join(parts).encode()) % UNSEEN == 0]["/".join(parts)] = text
    return found


def new_tokenizer(texts: dict[str, str]) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(PRE_TOKENS), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts.values(), trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=END, eos_token=END)


def new_model(hidden: int, layers: int, heads: int, feed_forward: int) -> LlamaForCausalLM:
    """Whose layers start as the identity."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads,
        intermediate_size=feed_forward, max_position_embeddings=4 * CONTEXT, tie_word_embeddings=True,
        bos_token_id=0, eos_token_id=0, pad_token_id=None,
    )  # fmt: skip
    model = LlamaForCausalLM(config).float()
    for layer in model.model.layers:
        torch.nn.init.zeros_(layer.self_attn.o_proj.weight)
        torch.nn.init.zeros_(layer.mlp.down_proj.weight)
    return model


def train(
    name: str, model: LlamaForCausalLM, tokens: Tensor, steps: int, teacher: LlamaForCausalLM | None = None
) -> None:
    """Train a model in place, by cross-entropy to the next token or to the teacher's law of it."""
    parts = dict(model.named_parameters())
    matrices = {key: weight for key, weight in parts.items() if weight.ndim == 2 and "embed" not in key}
    rest = [weight for key, weight in parts.items() if key not in matrices]
    adamw = torch.optim.AdamW(rest, lr=RATES[1], betas=(0.9, 0.95), weight_decay=0.0)
    optimizers = list(zip((Muon(matrices.values(), RATES[0]), adamw), RATES, strict=True))
    batches, recent = rows(tokens), 0.0
    bar = tqdm(range(steps), desc=f"train {name}", unit="step", mininterval=1.0)
    for step in bar:
        batch = next(batches)
        law = model(batch[:, :-1]).logits.flatten(0, 1).log_softmax(-1)
        if teacher is None:
            loss = F.nll_loss(law, batch[:, 1:].flatten())
        else:
            with torch.no_grad():
                taught = teacher(batch[:, :-1]).logits.flatten(0, 1).softmax(-1)
            loss = -(taught * law).sum(-1).mean()
        loss.backward()
        share = min((step + 1) / WARM_UP, 1, LAST + (1 - LAST) * 2 * (1 - step / steps))
        for optimizer, rate in optimizers:
            optimizer.param_groups[0]["lr"] = rate * share
            optimizer.step()
            optimizer.zero_grad()
        recent = loss.item() if not step else 0.95 * recent + 0.05 * loss.item()
        bar.set_postfix(loss=f"{recent:.3f}", refresh=False)
    print(f"{name}: loss {recent:.3f} after {steps} steps")


def rows(tokens: Tensor) -> Iterator[Tensor]:
    """Batches ``[BATCH, CONTEXT + 1]``: passes over the tokens, each shifted and shuffled anew."""
    generator = torch.Generator().manual_seed(0)
    while True:
        cut = tokens[int(torch.randint(CONTEXT, (), generator=generator)) :].unfold(0, CONTEXT + 1, CONTEXT)
        yield from cut[torch.randperm(len(cut), generator=generator)].split(BATCH)


if __name__ == "__main__":
    main()
