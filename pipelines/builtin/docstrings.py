"""Prose out of source code: docstrings, and paragraphs that stand in one document only."""

import ast
import warnings

SHORTEST_PARAGRAPH = 40  # characters; shorter ones, such as "Example:", may come again


def docstrings(text: str) -> list[str]:
    """The docstrings of a Python source in their order, dedented; none where it does not parse."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of old escapes in other people's code
            tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return []
    owners = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = [
        (node.body[0].lineno, ast.get_docstring(node))
        for node in ast.walk(tree)
        if isinstance(node, owners) and node.body
    ]
    return [docstring for _, docstring in sorted((line, string) for line, string in found if string)]


def paragraphs(text: str) -> set[str]:
    """The paragraphs that are long enough to be told from others, without their line breaks."""
    plain = (" ".join(paragraph.split()) for paragraph in text.split("\n\n"))
    return {paragraph for paragraph in plain if len(paragraph) >= SHORTEST_PARAGRAPH}


def without(text: str, seen: set[str]) -> str:
    """The text less the ``paragraphs`` in ``seen``."""
    return "\n\n".join(p for p in text.split("\n\n") if " ".join(p.split()) not in seen)
