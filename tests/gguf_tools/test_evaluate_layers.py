"""The error of each product alone, against the arithmetic as tests/reference.py states it."""

import models
import numpy as np
import pytest
import reference
from llama_octet.gguf_tools.convert import convert
from llama_octet.gguf_tools.evaluate import layers, unfolded
from llama_octet.gguf_tools.reader import Model
from llama_octet.gguf_tools.smoothing import Smoothing

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


@pytest.mark.parametrize("kind", ["experts", "dense"])
def test_a_smoothed_file_is_given_what_its_smoothing_makes_of_the_inputs(tmp_path, kind):
    """The factors are not in the file; the errors are as if they were known."""
    source, out = tmp_path / "in.gguf", tmp_path / "out.gguf"
    if kind == "dense":
        models.random_dense(source, layers=1)
        norm, readers = "blk.0.ffn_norm.weight", ["ffn_gate", "ffn_up"]
        up, down, count = "blk.0.ffn_up.weight", "blk.0.ffn_down.weight", 1
    else:
        models.random_moe(source, experts=3, layers=1)
        norm, readers = "blk.0.ffn_norm.weight", ["ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps"]
        up, down, count = "blk.0.ffn_up_exps.weight", "blk.0.ffn_down_exps.weight", 3
    readers = [f"blk.0.{name}.weight" for name in readers]
    rng, seed = np.random.default_rng(6), 2
    with Model(source) as model:
        shapes = {name: t.shape for name, t in model.tensors.items()}
    s = np.exp2(rng.uniform(-3, 3, (1, shapes[up][0]))).astype(np.float32).astype(float)
    t = np.exp2(rng.uniform(-3, 3, (count, shapes[down][0])))
    known = Smoothing("smoothquant+updown", 0.5, {name: s for name in readers} | {norm: 1 / s})
    known.columns[down] = 1 / t
    known.rows[up] = t.reshape(-1)
    convert(source, out, smoothing=known, seed=seed)

    names = [readers[-2], up, down]
    samples = {"names": np.array(names), "first": np.array(names)}
    for name in names:
        samples[name] = rng.standard_normal((6, shapes[name][0])).astype(np.float32)
        if count > 1:
            samples[f"{name}@experts"] = np.full((6, 1), 1, np.int32)
    got = found(source, out, samples, True)
    assert set(got) == set(names)
    with Model(source) as before, Model(out) as after:
        for name in names:
            first = before.tensors[name].shape[1] * (count > 1)
            rows = before.tensors[name].shape[1]
            x = samples[name].astype(float)
            exact = x @ before.tensors[name].floats(first, rows).T.astype(float)
            factors = known.columns[name]
            turned = reference.rotate_rows(x / factors[min(1, len(factors) - 1)], 128, seed)
            q, d = reference.quantize_rows(turned.astype(np.float32), x.shape[1])
            raw = np.frombuffer(after.tensors[name].read(first, rows), np.uint8)
            weight = reference.decode("q8_0", raw.reshape(rows, -1))
            y, _ = reference.product_exact(q, d, *weight)
            if name == up:
                y = y / t[min(1, count - 1)]
            wanted = relative(y, exact)
            assert 0 < wanted < 0.2
            assert got[name] == pytest.approx(wanted, rel=0.02)


def test_a_smoothed_file_of_another_model_gives_what_both_have(tmp_path):
    wide, small, out = tmp_path / "wide.gguf", tmp_path / "small.gguf", tmp_path / "out.gguf"
    models.random_dense(wide, layers=2, n_ff=384)
    models.random_dense(small, layers=1)
    halves = {f"blk.0.{name}.weight": np.full((1, 256), 0.5) for name in ("ffn_gate", "ffn_up")}
    norm = {"blk.0.ffn_norm.weight": np.full((1, 256), 2.0)}
    convert(small, out, smoothing=Smoothing("smoothquant", 0.5, halves | norm), seed=2)
    with Model(wide) as before, Model(out) as after:
        factors = unfolded.smoothing(before, after)
    assert not factors.rows
    readers = {f"blk.0.{name}.weight" for name in ("attn_q", "attn_k", "attn_v")} | set(halves)
    assert set(factors.columns) == readers
    for name in readers:
        np.testing.assert_allclose(factors.columns[name], 0.5 if name in halves else 1, rtol=1e-6)


def test_without_a_smoothing_there_are_no_factors(tmp_path, source):
    out = tmp_path / "out.gguf"
    convert(source, out)
    with Model(source) as before, Model(out) as after:
        none = unfolded.smoothing(before, after)
    assert not none.columns and not none.rows
