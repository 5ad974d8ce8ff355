"""What two runs of a model answered: {"tokens", "logits", …}."""


def same(answer, expected):
    """The same tokens, and the same bits of their logits."""
    assert answer["tokens"] == expected["tokens"]
    assert answer["logits"] == expected["logits"]
