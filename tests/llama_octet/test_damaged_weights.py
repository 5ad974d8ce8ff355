"""Weights that contradict their file are refused when the model is loaded, in one line."""

import numpy as np
import pytest
from gguf import GGUFReader
from models import random_dense

NAME = "blk.0.ffn_up.weight"


@pytest.fixture
def converted(tmp_path, octet):
    source, out = tmp_path / "f16.gguf", tmp_path / "int8.gguf"
    random_dense(source)
    assert octet("convert", source, out).returncode == 0
    return out


def damage(path, offset: int, value: bytes):
    """Write `value` at `offset` bytes into the tensor."""
    tensor = next(t for t in GGUFReader(path).tensors if t.name == NAME)
    with open(path, "r+b") as file:
        file.seek(tensor.data_offset + offset)
        file.write(value)


def refusal(done) -> str:
    """The line about the tensor, of a command that failed."""
    assert done.returncode == 1
    lines = [x for x in done.stderr.splitlines() if x.startswith("octet: ") and NAME in x]
    assert len(lines) == 1, done.stderr
    return lines[0]


def test_blocks_that_do_not_share_their_scale(converted, octet):
    damage(converted, 34, np.float16(0.5).tobytes())  # d of the second block
    assert "share their scale" in refusal(octet("run", converted, "-p", "hello", "-n", 2))


@pytest.mark.parametrize("scale", [np.nan, np.inf])
def test_scales_that_are_not_finite(converted, octet, scale):
    tensor = next(t for t in GGUFReader(converted).tensors if t.name == NAME)
    for block in range(int(tensor.shape[0]) // 32):  # the first row
        damage(converted, 34 * block, np.float16(scale).tobytes())
    assert "not finite" in refusal(octet("run", converted, "-p", "hello", "-n", 2))


def test_inspect_says_once_what_is_wrong_with_a_file(tmp_path, octet):
    path = tmp_path / "wrong.gguf"
    path.write_bytes(b"GGML" + bytes(100))
    done = octet("inspect", path)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1, done.stderr
