"""Chat prompts by rule, from what every Python installation holds: documents of four slices, each with a few prompts of its own.

A file of the standard library is one document: of ``code``, with functions to explain, test or change, or where it consists of
docstrings for a large part of ``prose``, with passages to summarise, question or simplify. So are the pages behind ``help()``.
``math`` are word problems, ``chat`` open questions, several to a topic. No passage stands in two documents. Texts depend on the
Python version; which of them are drawn depends on the seed, and every document has a random stream of its own.
"""

import ast
import random
import sysconfig
import textwrap
import warnings
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from pipelines.shares import Document

LEFT_OUT = (  # folders; the codecs are one text with other names
    *("site-packages", "dist-packages", "lib-dynload", "__pycache__", "idle_test", "pydoc_data"),
    *("encodings", "test", "tests"),
)
MANUAL_SHARE = 0.3  # of docstrings in a source, that makes it prose
SHORTEST_PARAGRAPH = 40  # characters; shorter ones, such as "Example:", may come again
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
DOCUMENTED = (ast.Module, ast.ClassDef, *FUNCTIONS)
LINES = range(5, 24)  # of a function
PASSAGE = range(250, 1001)  # characters
MOST = {"code": 4, "prose": 5, "math": 1, "chat": 4}  # prompts of a document
NUM_PROBLEMS = 520

CODE = """Explain what this Python function does.
Write a docstring for this function.
Rewrite this function with clearer variable names.
Add type hints to this function and return the whole function.
Find possible bugs in this code.
Write a unit test for this function.
Describe the inputs and outputs of this function, and give an example call.
Translate this function to JavaScript.""".splitlines()
PROSE = """Summarize the following text in three sentences.
List the key points of this text.
Rewrite this text for a beginner.
What is the main idea of this passage?
Write three questions that this text answers, with answers.
Turn this text into a bullet list.""".splitlines()
PROBLEMS = """{n} has {a} {t}. {m} gives {n} {b} more {t} every day for {c} days. How many {t} does {n} have now?
A box holds {b} {t}. {n} has {c} boxes and {a} loose {t}. How many {t} are there in all?
{n} buys {c} {t} for {b} dollars each and pays with {paid} dollars. How much change does {n} get?
A train travels {distance} miles in {c} hours. How far does it travel in {b} hours at the same speed?
{n} has {a} {t} and {m} has {b} times as many. How many {t} do they have together?
{n} shares {shared} {t} equally among {c} friends. How many {t} does each friend get?
{n} had {halved} {t}, lost {a} of them and gave half of the rest to {m}. How many {t} are left?""".splitlines()
NAMES = ("Ada", "Ben", "Chen", "Dana", "Eli", "Fatima", "Goran", "Hana", "Ivan", "Julia", "Kofi", "Lena")
THINGS = ("apples", "pencils", "books", "marbles", "coins", "stickers", "eggs", "tickets", "shells", "cards")
ASKED = """Explain {} in simple terms.
Write a short essay about {}.
Give me five tips for learning about {}.
Tell me a short story that involves {}.
Write a poem about {}.
What is the history of {}?
Why does {} matter?
List ten words related to {} and define each.
Write a dialogue between a teacher and a student about {}.""".splitlines()
TOPICS = """photosynthesis, the French Revolution, black holes, inflation in economics, vaccines, the water cycle, machine
learning, Shakespeare, plate tectonics, the Roman Empire, DNA, climate change, jazz music, the human heart, democracy,
electricity, chess, volcanoes, the Silk Road, gravity, honey bees, ocean currents, the printing press, nutrition, recycling,
Mars, the immune system, supply and demand, renewable energy, poetry, basketball, the human brain, sleep, dinosaurs, bridges,
the stock market, meditation, airplanes, coffee, bicycles, rainforests, glaciers, sound waves, the periodic table, algorithms,
fractions, the Moon, World War I, photography, gardening, ancient Egypt, the Renaissance, evolution, magnets, tea, bread,
deserts, whales, lighthouses, trains, satellites, the Internet, cryptography, the Olympic Games, opera, steel, migration of
birds, coral reefs, tides, earthquakes, rainbows, thunderstorms, batteries, robots, microscopes, telescopes, maps, clocks,
money, taxes, libraries, museums, schools, friendship, humor, memory, dreams, languages, geometry, probability, logic, ethics,
human rights, elections, radio, films, painting, sculpture, architecture, fashion, cooking, cheese, chocolate, rice, rivers,
islands, mountains, wolves, elephants, spiders, horses, dogs, cats, sugar, honey, sharks, comets"""


def chat_documents(seed: int = 0) -> tuple[Document, ...]:
    """All documents; their messages are prompts of a user, each for a conversation of its own."""
    sources = [*_read(), *((f"math/{number}", "math", PROBLEMS) for number in range(NUM_PROBLEMS))]
    for topic in TOPICS.replace("\n", " ").split(", "):
        sources.append((f"chat/{topic}", "chat", [ask.format(topic) for ask in ASKED]))
    seen, documents = set[str](), list[Document]()
    for id, slice, passages in sources:
        stream = random.Random(f"{seed} {id}")
        texts = [_problem(one, stream) for one in passages] if slice == "math" else passages
        new = [text for text in dict.fromkeys(texts) if text not in seen]
        seen.update(new)
        drawn = stream.sample(new, min(MOST[slice], len(new)))
        prompts = tuple({"role": "user", "content": _asked(slice, text, stream)} for text in drawn)
        documents += [Document(id, "", slice, prompts)] if prompts else []
    return tuple(documents)


@cache
def _read() -> list[tuple[str, str, list[str]]]:
    """Id, slice and passages to draw from of what this Python's library holds."""
    from pydoc_data.topics import topics

    library, told, found = Path(sysconfig.get_paths()["stdlib"]), set[str](), []
    for path in sorted(library.rglob("*.py")):
        parts = path.relative_to(library).parts
        if not any(part in LEFT_OUT or part.startswith("_sysconfigdata") for part in parts):
            text = path.read_text(encoding="utf-8", errors="replace")
            nodes = _nodes(text)
            manual = [said for node in nodes if (said := ast.get_docstring(node))]
            is_code = sum(map(len, manual)) < MANUAL_SHARE * len(text)
            passages = _functions(text, nodes) if is_code else _sections(manual, told)
            found.append(("/".join(parts), "code" if is_code else "prose", passages))
    return found + [(f"topics/{name}", "prose", _sections([text], told)) for name, text in sorted(topics.items())]


def _nodes(text: str) -> list[Any]:
    """What may have a docstring in a Python source; nothing where it does not parse."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of old escapes in other people's code
            return [node for node in ast.walk(ast.parse(text)) if isinstance(node, DOCUMENTED)]
    except (SyntaxError, ValueError):
        return []


def _functions(text: str, nodes: Iterable[Any]) -> list[str]:
    """Functions of some lines, as they stand in the text."""
    lines = text.splitlines()
    places = [(node.lineno - 1, node.end_lineno or 0) for node in nodes if isinstance(node, FUNCTIONS)]
    found = [textwrap.dedent("\n".join(lines[start:end])) for start, end in places if end - start in LINES]
    return [one for one in found if len(one) < PASSAGE.stop and "```" not in one]


def _sections(texts: Iterable[str], told: set[str]) -> list[str]:
    """Paragraphs in a row that make a passage together, without those in ``told``, which they join."""
    found = []
    for text in texts:
        found.append("")
        for paragraph in filter(str.strip, without(text, told).split("\n\n")):
            joined = f"{found[-1]}\n\n{paragraph}".strip("\n")
            found[-1:] = [joined] if len(joined) < PASSAGE.stop else [found[-1], paragraph]
        told |= paragraphs(text)
    return [one for one in found if len(one) in PASSAGE]


def paragraphs(text: str) -> set[str]:
    """The paragraphs that are long enough to be told from others, without their line breaks."""
    plain = (" ".join(paragraph.split()) for paragraph in text.split("\n\n"))
    return {paragraph for paragraph in plain if len(paragraph) >= SHORTEST_PARAGRAPH}


def without(text: str, seen: set[str]) -> str:
    """The text less the ``paragraphs`` in ``seen``."""
    return "\n\n".join(p for p in text.split("\n\n") if " ".join(p.split()) not in seen)


def _problem(template: str, stream: random.Random) -> str:
    """A template with drawn names and numbers, which come out even where they are to be shared."""
    (n, m), t = stream.sample(NAMES, 2), stream.choice(THINGS)
    a, b, c = stream.randint(3, 40), stream.randint(2, 12), stream.randint(2, 9)
    even = {"paid": b * c + a, "distance": 3 * a * c, "shared": a * c, "halved": 2 * b * c + a}
    return template.format(n=n, m=m, t=t, a=a, b=b, c=c, **even) + " Explain step by step."


def _asked(slice: str, text: str, stream: random.Random) -> str:
    if slice == "code":
        return f"{stream.choice(CODE)}\n\n```python\n{text}\n```"
    return f"{stream.choice(PROSE)}\n\n{text}" if slice == "prose" else text
