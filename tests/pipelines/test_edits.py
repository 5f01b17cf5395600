"""Passages and their revised copies, by rule."""

import random

import pytest

from pipelines.edits import REVERSED, SORTED, EditParameters, begun, edits_of, revised

CODE = (
    """
def total(rows, start):
    result = start
    for row in rows:
        result = result + weight(row)
    return result

def weight(row):
    measure = row.size
    return measure * 2

"""
    * 3
)
LIST = (
    """
NAMES = [
    "pear",
    "apple",
    "fig",
    "banana",
]
"""
    * 4
)
PROSE = "One sentence stands here.  A second one\nruns over two lines. Third!\nA fourth (the last) ends it.\n\n" * 6
PARAMETERS = EditParameters(min_tokens=20, max_tokens=60)


def words(text):
    """A tokenizer: one number per word or line break."""
    return [hash(word) for word in text.replace("\n", " \n ").split(" ") if word]


def edits(text, kind, seed=0, parameters=PARAMETERS):
    return list(edits_of(text, kind, parameters, words, random.Random(seed)))


@pytest.mark.parametrize(("text", "kind"), [(CODE, "code"), (LIST, "code"), (PROSE, "prose")])
def test_a_revision_follows_from_its_passage_and_its_request(text, kind):
    made = [edit for seed in range(10) for edit in edits(text, kind, seed)]
    assert made
    for edit in made:
        assert edit.passage in text and edit.passage.endswith("\n")
        assert edit.revision == revised(edit.passage, edit.request) != edit.passage
        assert edit.text == f"{edit.passage}\n{edit.request}\n\n{edit.revision}"
        assert 20 <= len(words(edit.passage)) <= 60
        assert edit.request.startswith("# ") == (kind == "code")


def test_whole_words_are_renamed_everywhere():
    request = "# The same with row renamed to line and weight renamed to measure:"
    assert revised("row = rows[row]  # a row\nx.weight(row)\n", request) == (
        "line = rows[line]  # a line\nx.measure(line)\n"
    )


def test_identifiers_of_the_passage_get_names_that_it_does_not_have():
    made = [edit for seed in range(20) for edit in edits(CODE, "code", seed)]
    renamed = [edit.request.split()[4] for edit in made]
    assert "result" in renamed
    assert not {"def", "return", "size"} & set(renamed), "neither keywords nor attributes"
    for edit in made:
        old, new = (edit.request.rstrip(":").split()[place] for place in (4, 7))
        assert new not in edit.passage.split() and old not in edit.revision.replace("(", " ").split()


def test_entries_of_one_indentation_are_sorted():
    assert revised(LIST, f"# {SORTED}").split()[3:7] == ['"apple",', '"banana",', '"fig",', '"pear",']
    three = "[\n  b,\n  a,\n  c,\n]\n"
    assert revised(three, f"# {SORTED}") == three, "a run of three is left as it is"


def test_the_last_sentence_comes_first():
    assert revised("One is here. Two\nis here! And three.\n", REVERSED) == ("And three.\nTwo\nis here!\nOne is here.\n")


def test_passages_do_not_overlap_and_follow_the_seed():
    numbered = "".join(f"Sentence {index} is here. It is short. It ends.\n" for index in range(60))
    made = edits(numbered, "prose")
    lines = [line for edit in made for line in edit.passage.splitlines()]
    assert len(made) > 3 and len(set(lines)) == len(lines)
    assert made == edits(numbered, "prose") != edits(numbered, "prose", seed=1)


def test_a_prompt_ends_in_the_first_half_of_the_copy_and_leaves_room():
    for seed in range(30):
        for edit in edits(PROSE, "prose", seed):
            copy, before = len(words(edit.revision)), len(words(edit.text.removesuffix(edit.revision)))
            tokens = begun(edit, 15, words, random.Random(seed))
            if copy < 21:
                assert tokens is None
                continue
            assert tokens == words(edit.text)[: len(tokens)]
            assert 6 <= len(tokens) - before <= copy // 2
            assert len(words(edit.text)) - len(tokens) >= 15
