"""The error of each product alone, against the arithmetic as tests/reference.py states it."""

import models
import numpy as np
import pytest
import reference
from llama_octet.gguf_tools.convert import convert
from llama_octet.gguf_tools.evaluate import layers
from llama_octet.gguf_tools.reader import Model

Q, K, GATE = "blk.0.attn_q.weight", "blk.0.attn_k.weight", "blk.0.ffn_gate_exps.weight"


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return models.random_moe(tmp_path_factory.mktemp("layers") / "moe.gguf", experts=3, layers=1)


@pytest.fixture(scope="module")
def samples():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((7, 256)).astype(np.float32)
    x[:, 5] *= 30
    routed = np.array([[0, 2], [2, 0], [0, 2], [0, 2], [2, 0], [0, 2], [0, 2]], np.int32)
    return {
        "names": np.array([Q, K, GATE, "gone.weight"]),
        "first": np.array([Q, Q, GATE, "gone.weight"]),
        Q: x,
        GATE: x[::-1].copy(),
        f"{GATE}@experts": routed,
    }


def found(control, candidate, samples, rounds):
    with Model(control) as before, Model(candidate) as after:
        return {o["name"]: o["error"] for o in layers.errors(before, after, samples, rounds)}


def relative(y, exact):
    return np.sqrt(np.square(y - exact).sum() / np.square(exact).sum())


@pytest.mark.parametrize(("group", "rotate"), [("row", "128"), ("128", "64"), ("32", "0")])
@pytest.mark.parametrize("rounds", [True, False])
def test_int8(tmp_path, source, samples, group, rotate, rounds):
    out, seed = tmp_path / "out.gguf", 9
    convert(source, out, scale_group=group, rotate=rotate, seed=seed)
    got = found(source, out, samples, rounds)
    assert set(got) == {Q, K, GATE}  # all rounded to int8
    with Model(source) as model, Model(out) as after:
        for name, x in ((Q, samples[Q]), (K, samples[Q])):
            tensor = model.tensors[name]
            w = tensor.floats(0, tensor.rows)
            raw = np.frombuffer(after.tensors[name].read(0, tensor.rows), np.uint8)
            weight = reference.decode("q8_0", raw.reshape(tensor.rows, -1))
            turned = reference.rotate_rows(x, int(rotate), seed) if int(rotate) else x
            if rounds:
                wide = {"row": 256, "128": 128, "32": 32}[group]
                q, d = reference.quantize_rows(turned, wide)
                y, _ = reference.product_exact(q, d, *weight)
            else:
                y = turned.astype(float) @ (weight[0] * np.repeat(weight[1], 32, axis=1)).T
            assert got[name] == pytest.approx(relative(y, x.astype(float) @ w.T), rel=1e-3)


def test_experts_that_no_row_reads_do_not_count(tmp_path, source, samples):
    out = tmp_path / "out.gguf"
    convert(source, out, int8="none", experts="iq3_s:iq4_nl")
    got = found(source, out, samples, False)
    assert set(got) == {GATE}
    with Model(source) as model, Model(out) as after:
        each = (
            [samples[GATE] @ model.tensors[GATE].floats(256 * e, 256).T for e in (0, 2)],
            [samples[GATE] @ after.tensors[GATE].floats(256 * e, 256).T for e in (0, 2)],
        )
    exact, y = (np.concatenate(part) for part in each)
    assert got[GATE] == pytest.approx(relative(y, exact), rel=1e-4)


def test_the_largest_come_first_and_copies_are_left_out(tmp_path, source, samples):
    out = tmp_path / "out.gguf"
    convert(source, out, int8=Q, experts="iq2_s:iq4_nl")
    with Model(source) as before, Model(out) as after:
        some = layers.errors(before, after, samples, True)
    assert [one["name"] for one in some] == [GATE, Q]
    assert some[0]["error"] > some[1]["error"] > 0


def test_smoothed_files_have_other_inputs(tmp_path, source, samples):
    from llama_octet.gguf_tools.smoothing import Smoothing

    out = tmp_path / "out.gguf"
    half = {Q: np.full((1, 256), 0.5)}
    convert(source, out, smoothing=Smoothing("smoothquant", 0.5, columns=half))
    with Model(source) as before, Model(out) as after:
        assert layers.errors(before, after, samples, True) is None
