"""Whole layers in one pass: the bits of their nodes computed one by one, in the runtime."""

import json

import pytest

BOTH = """
import ctypes
import hashlib
import json
import sys
import llama_cpp
import llama_octet
from llama_cpp import _internals

llm = llama_octet.Llama(sys.argv[1], n_ctx=64, verbose=False)
ids = llm.tokenize(b"Once upon a time there was a")


def counted():
    return {name: of["calls"] for name, of in llama_octet.status()["kernels"].items()}


# A callback that wants to see every node has the runtime compute them one by one.
@llama_cpp.ggml_backend_sched_eval_callback
def every_node(tensor, ask, data):
    return True


def logits(callback):
    before = counted()
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = 64
    if callback:
        params.cb_eval = callback
    context = _internals.LlamaContext(model=llm._model, params=params, verbose=False)
    found = hashlib.sha256()
    for part in (ids, ids[:1], ids[:1]):
        tokens = (ctypes.c_int32 * len(part))(*part)
        batch = llama_cpp.llama_batch_get_one(tokens, len(part))
        assert llama_cpp.llama_decode(context.ctx, batch) == 0
        row = llama_cpp.llama_get_logits_ith(context.ctx, -1)
        found.update(ctypes.string_at(row, 4 * llm.n_vocab()))
    calls = {name: n - before.get(name, 0) for name, n in counted().items()}
    return found.hexdigest(), {name: n for name, n in calls.items() if n}


print(json.dumps([logits(None), logits(every_node)]))
"""


def both(program, model, **switches):
    """(digest of the logits, calls of each kernel): in one pass, and node by node."""
    done = program(BOTH, model, **switches)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("switches", "kind"),
    [({}, "int8"), ({"OCTET_LAYOUT": "native"}, "int8"), ({"OCTET_W8A8": 0}, "float")],
)
def test_dense_layers(program, convert, smollm2, switches, kind):
    (fused, chains), (single, products) = both(program, convert(smollm2), **switches)
    # 30 layers and 3 batches; q, k, v and output of a layer stay products.
    assert chains == {f"dense chain {kind}:{kind}": 90, f"dense {kind}": 360}
    assert products == {f"dense {kind}": 630}
    assert fused == single


@pytest.mark.parametrize(
    ("options", "chain"),
    [((), "chain int8:int8"), (("--experts", "iq3_s:iq4_nl"), "chain iq3_s:iq4_nl")],
)
def test_expert_layers(program, convert, tiny_moe, options, chain):
    (fused, chains), (single, products) = both(program, convert(tiny_moe, *options))
    assert chains[chain] == 18  # 6 layers
    assert not [name for name in products if name.startswith("chain")]
    assert fused == single
