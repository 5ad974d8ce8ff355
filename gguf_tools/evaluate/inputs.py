"""What models are compared on: texts, prompts and multiple-choice questions, as tokens."""

import json
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import OctetError, UsageError
from .metrics import UNKNOWN


@dataclass
class Item:
    """A sequence that every model is fed. Its positions from `first` on are compared."""

    kind: str  # text, prompt or question
    tokens: list[int]
    first: int
    targets: list[int]  # what follows each compared position, or UNKNOWN
    options: list[int] = field(default_factory=list)  # of a question: the options' tokens
    label: int = UNKNOWN  # of a question: the right option

    @property
    def positions(self) -> int:
        """How many positions are compared."""
        return len(self.tokens) - self.first


@dataclass(frozen=True)
class Question:
    """A multiple-choice question with its few-shot prompt."""

    prompt: str
    options: list[str]
    label: int


def chunks(tokens: list[int], bos: list[int], length: int, skip: int, positions: int):
    """Items of `length` tokens, `bos` included, cut from a text until there are `positions`.

    In each the first `skip` positions only give context. Every compared position has a next token.
    """
    items, at, left, room = [], 0, positions, length - len(bos)
    while left > 0:
        full = bos + tokens[at : at + room + 1]
        end = min(len(full) - 1, skip + left)
        if end <= skip:
            break
        items.append(Item("text", full[:end], skip, full[skip + 1 : end + 1]))
        at += room
        left -= end - skip
    return items


def continued(prompt: list[int], continuation: list[int]) -> Item:
    """A prompt and what the control goes on with: compared from the prompt's last token on."""
    tokens = prompt + continuation[:-1]
    return Item("prompt", tokens, len(prompt) - 1, continuation)


def question(prompt: list[int], options: list[int], label: int) -> Item:
    """A question, compared where the answer is due."""
    return Item("question", prompt, len(prompt) - 1, [UNKNOWN], options, label)


def read_text(path: str) -> str:
    """A text file."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as why:
        raise OctetError(f"{path}: cannot be read: {why.strerror or why}") from None
    except UnicodeDecodeError:
        raise OctetError(f"{path}: is not UTF-8 text") from None
    if not text.strip():
        raise OctetError(f"{path}: is empty")
    return text


def read_prompts(path: str) -> list[str]:
    """Prompts: a JSON list of strings, or one prompt per line."""
    text = read_text(path)
    if not text.lstrip().startswith("["):
        return [line for line in text.splitlines() if line.strip()]
    found = _json(path, text)
    if not found or not all(isinstance(p, str) and p for p in found):
        raise OctetError(f"{path}: must be a JSON list of texts, or one prompt per line")
    return found


def read_questions(path: str) -> list[Question]:
    """Multiple-choice questions: {"samples": [{"prompt", "options", "input_label"}, …]}."""
    found = _json(path, read_text(path))
    samples = found.get("samples") if isinstance(found, dict) else None
    if not isinstance(samples, list) or not samples:
        raise UsageError(f'{path}: must be {{"samples": [{{"prompt", "options", "input_label"}}]}}')
    return [_question(path, number, sample) for number, sample in enumerate(samples, 1)]


def _question(path: str, number: int, sample) -> Question:
    try:
        prompt, options, label = (sample[k] for k in ("prompt", "options", "input_label"))
        good = (
            isinstance(prompt, str)
            and prompt != ""
            and len(options) > 1
            and all(isinstance(option, str) and option for option in options)
            and type(label) is int
            and 0 <= label < len(options)
        )
    except (KeyError, TypeError):
        good = False
    if not good:
        raise OctetError(
            f"{path}: sample {number} must have a prompt, two or more options, and an input_label "
            "that is the index of the right one"
        )
    return Question(prompt, list(options), label)


def _json(path: str, text: str):
    try:
        return json.loads(text)
    except ValueError as why:
        raise OctetError(f"{path}: is not JSON: {why}") from None
