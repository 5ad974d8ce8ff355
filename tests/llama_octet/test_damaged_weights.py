"""Weights that contradict their file are refused when the model is loaded, in one line."""

import shutil

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


def refusal(done, path) -> str:
    """The line about the tensor and the file, of a command that failed while it loaded that."""
    assert done.returncode == 1
    lines = [x for x in done.stderr.splitlines() if x.startswith("octet: ") and NAME in x]
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith(f"octet: {path}: ")
    return lines[0]


@pytest.mark.parametrize("layout", ["packed", "native"])
def test_blocks_that_do_not_share_their_scale(converted, octet, layout):
    damage(converted, 34, np.float16(0.5).tobytes())  # d of the second block
    done = octet("run", converted, "-p", "hello", "-n", 2, OCTET_LAYOUT=layout)
    assert "share their scale" in refusal(done, converted)


def damage_scales(path, scale):
    """Give the whole first row this scale."""
    tensor = next(t for t in GGUFReader(path).tensors if t.name == NAME)
    for block in range(int(tensor.shape[0]) // 32):
        damage(path, 34 * block, np.float16(scale).tobytes())


@pytest.mark.parametrize("layout", ["packed", "native"])
@pytest.mark.parametrize("scale", [np.nan, np.inf])
def test_scales_that_are_not_finite(converted, octet, scale, layout):
    damage_scales(converted, scale)
    done = octet("run", converted, "-p", "hello", "-n", 2, OCTET_LAYOUT=layout)
    assert "not finite" in refusal(done, converted)


# Blocks that the loader reads into our memory without saying so; and a model that nobody announced.
LOADS = """
import sys, llama_cpp, llama_octet
llama_octet.load()
damaged, good = sys.argv[1:]
plain = dict(verbose=False, kv_overrides={"general.architecture": "llama"}, use_mmap=False)
try:
    llama_octet.Llama(damaged, verbose=False, use_mmap=False)
    sys.exit("it was loaded")
except llama_octet.ModelError as why:
    assert "not finite" in str(why), why
# The damaged one is this model's matter only, also while it is there.
kept = llama_cpp.Llama(damaged, **plain)
llm = llama_octet.Llama(good, verbose=False)
print(llm.tokenize(b"x") and "loaded")
"""


@pytest.mark.parametrize("layout", ["packed", "native"])
def test_a_damaged_model_is_no_other_models_matter(tmp_path, converted, octet, program, layout):
    good = tmp_path / "good.gguf"
    shutil.copy(converted, good)
    damage_scales(converted, np.inf)
    done = program(LOADS, converted, good, OCTET_LAYOUT=layout, OCTET_MODEL=converted)
    assert (done.returncode, done.stdout) == (0, "loaded\n"), done.stderr


def test_inspect_says_once_what_is_wrong_with_a_file(tmp_path, octet):
    path = tmp_path / "wrong.gguf"
    path.write_bytes(b"GGML" + bytes(100))
    done = octet("inspect", path)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1, done.stderr
