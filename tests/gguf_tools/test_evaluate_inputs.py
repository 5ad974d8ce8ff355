"""Texts, prompts and questions: how they are read, and which positions they give."""

import json

import pytest
from llama_octet.gguf_tools.errors import OctetError
from llama_octet.gguf_tools.evaluate import inputs
from llama_octet.gguf_tools.evaluate.metrics import UNKNOWN


def pairs(items) -> list[tuple[list[int], int]]:
    """What each compared position has seen, and what follows it."""
    return [
        (item.tokens[: item.first + i + 1], item.targets[i])
        for item in items
        for i in range(item.positions)
    ]


def test_chunks_of_a_text():
    found = inputs.chunks([1, 2, 3, 4, 5, 6, 7], [], length=3, skip=0, positions=100)
    assert pairs(found) == [
        ([1], 2),
        ([1, 2], 3),
        ([1, 2, 3], 4),
        ([4], 5),
        ([4, 5], 6),
        ([4, 5, 6], 7),
    ]


def test_each_chunk_begins_with_the_begin_token():
    found = inputs.chunks([1, 2, 3, 4, 5], [9], length=3, skip=1, positions=100)
    assert pairs(found) == [([9, 1], 2), ([9, 1, 2], 3), ([9, 3], 4), ([9, 3, 4], 5)]


def test_exactly_the_wished_number_of_positions():
    for skip in (0, 3):
        for positions in (1, 7, 20, 21):
            found = inputs.chunks(list(range(1000)), [9], 10, skip, positions)
            assert sum(item.positions for item in found) == positions
            assert all(len(item.tokens) <= 10 for item in found)
            assert all(len(item.targets) == item.positions for item in found)


def test_a_short_text_gives_what_it_has():
    assert pairs(inputs.chunks([1, 2, 3], [], 10, 0, 100)) == [([1], 2), ([1, 2], 3)]
    assert inputs.chunks([1], [], 10, 0, 100) == []
    assert inputs.chunks([1, 2, 3], [], 10, 2, 100) == []


def test_a_prompt_and_its_continuation():
    item = inputs.continued([1, 2, 3], [4, 5, 6])
    assert pairs([item]) == [([1, 2, 3], 4), ([1, 2, 3, 4], 5), ([1, 2, 3, 4, 5], 6)]


def test_a_question_is_compared_where_the_answer_is_due():
    item = inputs.question([1, 2, 3], [7, 8], 1)
    assert pairs([item]) == [([1, 2, 3], UNKNOWN)]
    assert (item.options, item.label) == ([7, 8], 1)


def test_prompts_by_line_and_as_json(tmp_path):
    lines, listed = tmp_path / "a.txt", tmp_path / "a.json"
    lines.write_text("One\n\nTwo three\n")
    listed.write_text(json.dumps(["One\nline", "Two"]))
    assert inputs.read_prompts(str(lines)) == ["One", "Two three"]
    assert inputs.read_prompts(str(listed)) == ["One\nline", "Two"]


def test_questions(tmp_path):
    path = tmp_path / "q.json"
    path.write_text(
        json.dumps(
            {"samples": [{"prompt": "P", "options": [" A", " B"], "input_label": 1, "i": 5}]}
        )
    )
    assert inputs.read_questions(str(path)) == [inputs.Question("P", [" A", " B"], 1)]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "not JSON"),
        ("[]", "samples"),
        ('{"samples": []}', "samples"),
        ('{"samples": [{"prompt": "P", "options": [" A"], "input_label": 0}]}', "sample 1"),
        ('{"samples": [{"prompt": "P", "options": [" A", " B"], "input_label": 2}]}', "sample 1"),
        ('{"samples": [{"prompt": "P", "options": [" A", " B"]}]}', "sample 1"),
        ('{"samples": [{"prompt": "", "options": [" A", " B"], "input_label": 0}]}', "sample 1"),
        ('{"samples": [7]}', "sample 1"),
    ],
)
def test_bad_questions(tmp_path, content, said):
    path = tmp_path / "q.json"
    path.write_text(content)
    with pytest.raises(OctetError, match=said) as caught:
        inputs.read_questions(str(path))
    assert str(path) in str(caught.value)


def test_files_that_cannot_be_read(tmp_path):
    for content in (b"", b"  \n", b"\xff\xfe\xff"):
        path = tmp_path / "t.txt"
        path.write_bytes(content)
        with pytest.raises(OctetError, match=r"t\.txt"):
            inputs.read_text(str(path))
    with pytest.raises(OctetError, match="No such file"):
        inputs.read_text(str(tmp_path / "none.txt"))
    with pytest.raises(OctetError, match="list of texts"):
        path.write_text("[1, 2]")
        inputs.read_prompts(str(path))
