"""The importance matrix of `octet calibrate` in llama.cpp's own quantizer.

The file is read here as llama-quantize reads it (means per expert, ones for an expert without
tokens); from there on it is the runtime's code.
"""

import json

import gguf
import models
import numpy as np
import pytest
from llama_octet.gguf_tools.reader import Model

TEXT = "A small cake of oats and rye, 42 grams; more or less. The weather is fine.\n" * 8

QUANTIZE = """
import ctypes, json, sys
import gguf, llama_cpp as low, numpy as np
source, out, stats, change = sys.argv[1:]
params = low.llama_model_quantize_default_params()
params.ftype, params.pure, params.nthread = low.LLAMA_FTYPE_MOSTLY_IQ3_XXS, True, 2
tables = {}
if stats:
    tensors = {t.name: t.data for t in gguf.GGUFReader(stats).tensors}
    for name in tensors:
        if name.endswith(".in_sum2"):
            sums, counts = tensors[name], tensors[name.replace(".in_sum2", ".counts")]
            mean = np.where(counts > 0, sums / np.maximum(counts, 1), 1).astype(np.float32)
            tables[name.removesuffix(".in_sum2")] = np.ascontiguousarray(mean.reshape(-1))
    if change == "short":
        tables = {name: table[1:] for name, table in tables.items()}
    pointer = ctypes.POINTER(ctypes.c_float)
    entries = [(n.encode(), t.ctypes.data_as(pointer), t.size) for n, t in tables.items()]
    array = (low.llama_model_imatrix_data * (len(entries) + 1))(*entries)
    params.imatrix = ctypes.cast(array, ctypes.POINTER(low.llama_model_imatrix_data))
code = low.llama_model_quantize(source.encode(), out.encode(), ctypes.byref(params))
print(json.dumps([code, sorted(tables)]))
"""


def quantize(program, source, out, stats="", change=""):
    """Exit code of the runtime's quantizer, and the weights that the matrix told it about."""
    done = program(QUANTIZE, source, out, stats, change)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("kind", ["dense", "experts", "merged"])
def test_llama_quantize_takes_what_calibrate_wrote(octet_json, program, tmp_path, kind):
    source = tmp_path / "model.gguf"
    if kind == "dense":
        models.random_dense(source, layers=1)
    else:
        models.random_moe(source, layers=1, experts=16, merged=kind == "merged")
    text, stats = tmp_path / "text.txt", tmp_path / "stats.gguf"
    text.write_text(TEXT)
    result = octet_json("calibrate", source, text, "-o", stats, "--gram", "*")

    # This type is refused for a weight that the matrix does not know, or knows in another size.
    assert quantize(program, source, tmp_path / "none.gguf")[0] != 0
    assert quantize(program, source, tmp_path / "short.gguf", stats, "short")[0] != 0
    theirs = tmp_path / "theirs.gguf"
    code, names = quantize(program, source, theirs, stats)
    assert code == 0
    assert len(names) == result["products"]
    if kind == "dense":
        with Model(theirs) as model:
            weights = [t for t in model.tensors.values() if t.name.startswith("blk.0.")]
            assert {t.type.name for t in weights if len(t.shape) > 1} == {"iq3_xxs"}
        return

    # What `octet convert` makes of the file is what llama-quantize makes of it.
    ours, blind = tmp_path / "ours.gguf", tmp_path / "blind.gguf"
    options = ("--int8", "none", "--experts", "iq3_xxs:iq3_xxs")
    octet_json("convert", source, ours, *options, "--imatrix", stats)
    octet_json("convert", source, blind, *options)
    found = {path: data_of(path) for path in (theirs, ours, blind)}
    experts = [name for name in found[ours] if "_exps" in name]
    assert len(experts) == (2 if kind == "merged" else 3)
    for name in experts:
        # A mean may round another way in its last bit, and a value between two codes with it.
        assert np.mean(found[ours][name] == found[theirs][name]) > 0.999
        assert np.mean(found[blind][name] == found[theirs][name]) < 0.95


def data_of(path):
    return {t.name: np.array(t.data).reshape(-1) for t in gguf.GGUFReader(str(path)).tensors}
