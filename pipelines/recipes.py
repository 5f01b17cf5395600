"""Ready-made sources of prompts, and chat templates, by their names in ``recipes.yaml``.

A source in ``params.yaml`` names one, and what stands beside the name there replaces the recipe's:

    - {recipe: gsm8k, limit: 100}
"""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

TEXTS = ("column", "template", "messages", "turns")
SLICES = ("slice", "slice_column")
# Fields of a recipe that go where a source gives this one.
REPLACED: Mapping[str, tuple[str, ...]] = {
    "path": ("config", "revision"),
    **dict.fromkeys(TEXTS, (*TEXTS, "answers")),
    **dict.fromkeys(SLICES, (*SLICES, "slices")),
}


def completed(source: Mapping[str, Any]) -> Mapping[str, Any]:
    """The fields that a source gives, and below them those of its recipe, whose name is the source's by default.
    `ValueError` for an unknown recipe (naming those that are known)."""
    name = source.get("recipe")
    if name is None:
        return source
    recipes = _registry()["recipes"]
    if str(name) not in recipes:
        raise ValueError(f"there is no recipe {name!r}. Recipes: {', '.join(recipes)}.")
    gone = {key for given in source for key in REPLACED.get(given, ())}
    return {"name": name, **{key: value for key, value in recipes[name].items() if key not in gone}, **source}


def chat_template(named: str | None) -> str | None:
    """The template of that name, or the template itself. `ValueError` for a name that is unknown."""
    templates: Mapping[str, str] = _registry()["chat_templates"]
    template = templates.get(named, named) if named else None
    if template is not None and "{" not in template:
        raise ValueError(f"there is no chat template {named!r}. Give one of {', '.join(templates)}, or one in Jinja.")
    return template


@functools.cache
def _registry() -> Any:
    return yaml.safe_load(Path(__file__).with_name("recipes.yaml").read_text(encoding="utf-8"))
