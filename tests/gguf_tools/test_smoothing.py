import models
import numpy as np
import pytest
import reference
from conftest import floats, read
from llama_octet.gguf_tools import folds, imatrix, plan
from llama_octet.gguf_tools.convert import convert, write_float
from llama_octet.gguf_tools.imatrix import Contents, Importance, Statistics
from llama_octet.gguf_tools.reader import Model
from llama_octet.gguf_tools.smoothing import (
    Magnitudes,
    Smoothing,
    Treatment,
    norm_smoothing,
    power_of_two,
    smoothquant,
    up_down_smoothing,
)


def int8_dot(x, w) -> float:
    """x · w with each side rounded to int8 by one scale."""
    sides = []
    for values in (x, w):
        d = np.abs(values).max() / 127
        sides.append(d * np.trunc(values / d + np.copysign(0.5, values)))
    return float(sides[0] @ sides[1])


def test_the_check_vector():
    """By alpha 0.5, s = [1, 1, 8]: an error of 0.0632 instead of 0.0945. A search does no worse."""
    x, w = np.array([1.0, 1.0, 16.0]), np.array([2.0, 2.0, 0.5])
    assert x @ w == 12
    assert int8_dot(x, w) == pytest.approx(12.094488, abs=5e-7)
    found = {}
    for alpha in np.arange(11) / 10:
        s = power_of_two(smoothquant(x, w, alpha))
        found[alpha] = (abs(int8_dot(x / s, w * s) - 12), s.tolist())
    assert found[0.5][1] == [1, 1, 8]
    s = np.array(found[0.5][1])
    assert int8_dot(x / s, w * s) == pytest.approx(12.063240, abs=5e-7)
    assert min(error for error, _ in found.values()) <= found[0.5][0]


def test_powers_of_two_and_channels_without_scale():
    assert power_of_two(np.array([1.4, 1.5, 0.7, 0.75, 2**0.5])).tolist() == [1, 2, 0.5, 1, 2]
    assert smoothquant(np.array([0.0, 3, 0]), np.array([2.0, 0, 0]), 0.5).tolist() == [1, 1, 1]
    s = smoothquant(np.array([16.0]), np.array([0.25]), 0.75)
    assert s[0] == pytest.approx(16**0.75 / 0.25**0.25)


def names(tensors):
    return [t.name.removeprefix("blk.0.").removesuffix(".weight") for t in tensors]


EXPERTS = ["ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps"]
ROUTED = [
    ({}, EXPERTS, [("ffn_up_exps", 0)]),
    ({"merged": True}, ["ffn_gate_inp", "ffn_gate_up_exps"], [("ffn_gate_up_exps", 256)]),
    (
        {"shared": True},
        [*EXPERTS, "ffn_gate_shexp", "ffn_up_shexp"],
        [("ffn_up_exps", 0), ("ffn_up_shexp", 0)],
    ),
]


@pytest.mark.parametrize(("kind", "readers", "pairs"), ROUTED)
def test_all_readers_of_a_norm_and_no_other_norm(tmp_path, kind, readers, pairs):
    path = models.random_moe(tmp_path / "m.gguf", layers=1, **kind)
    with Model(path) as model:
        architecture = model.text("general.architecture")
        (attention, ffn), why = folds.norm_folds(model, architecture)
        assert why == ""
        assert names(attention.norm) == ["attn_norm"]
        assert names(attention.readers) == ["attn_q", "attn_k", "attn_v"]
        assert names(ffn.norm) == ["ffn_norm"]
        assert sorted(names(ffn.readers)) == sorted(readers)
        found, why = folds.up_down_folds(model, architecture)
        assert why == ""
        assert [(names([f.up])[0], f.first) for f in found] == pairs


def test_gemma_has_norms_behind_that_stay(tied):
    with Model(tied) as model:
        found, _ = folds.norm_folds(model, "gemma3")
        assert [names(f.norm) for f in found] == [["attn_norm"], ["ffn_norm"]]


def test_architectures_that_are_not_folded(dense, moe):
    with Model(dense) as model:
        assert folds.norm_folds(model, "starcoder2")[0] == []
        assert "starcoder2 is not known" in folds.norm_folds(model, "starcoder2")[1]
        assert len(folds.up_down_folds(model, "starcoder2")[0]) == 1  # needs no norms
        assert "clamps" in folds.up_down_folds(model, "gpt-oss")[1]


def statistics(path, target, seed=0):
    """A made-up measurement: every input of a model with its own ranges."""
    rng = np.random.default_rng(seed)
    contents = Contents(["a"], 1, 8, 128, 0)
    with Model(path) as model:
        for tensor in model.tensors.values():
            if len(tensor.shape) > 1:
                experts = tensor.shape[2] if len(tensor.shape) > 2 else 1
                largest = np.exp2(rng.integers(-6, 7, (experts, tensor.columns)))
                contents.products[tensor.name] = Statistics(
                    np.full(experts, 8.0), largest**2, largest.astype(float)
                )
                contents.input_of[tensor.name] = tensor.name
    imatrix.write(target, contents)
    return target


def smoothings(path, stats, alpha=0.5, rotated=True, rounded=lambda name: True):
    with Model(path) as model, Importance(stats) as importance:
        architecture = model.text("general.architecture")
        treatment = Treatment(
            lambda t: plan.role_of(t.name, t.shape) != "other" and rounded(t.name),
            lambda t: rotated,
        )
        shared = treatment, Magnitudes()
        norms = folds.norm_folds(model, architecture)[0]
        pairs = folds.up_down_folds(model, architecture)[0]
        return (
            norm_smoothing(norms, importance, alpha, *shared),
            up_down_smoothing(pairs, importance, *shared),
            up_down_smoothing(pairs, None, *shared),
        )


@pytest.mark.parametrize("rotated", [True, False])
def test_formulas(tmp_path, dense, rotated):
    """Of q, k and v together, and of up and down, with the file read by gguf-py."""
    stats = statistics(dense, tmp_path / "s.gguf")
    norms, pairs, without_data = smoothings(dense, stats, 0.3, rotated)
    _, tensors = read(dense)
    _, measured = read(stats)
    kind = "in_sum2" if rotated else "in_max"
    readers = [f"blk.0.attn_{x}.weight" for x in "qkv"]

    def size(tables, axis):
        if rotated:
            return np.sqrt((np.concatenate(tables) ** 2).mean(axis))
        return np.abs(np.concatenate(tables)).max(axis)

    given = [measured[f"{name}.{kind}"].data.reshape(1, -1) for name in readers]
    x = np.sqrt(np.sum(given, axis=(0, 1)) / 24) if rotated else np.max(given, axis=(0, 1))
    w = size([floats(tensors[name]) for name in readers], 0)
    wanted = x**0.3 / w**0.7
    for name in readers:
        assert np.allclose(norms.columns[name][0], wanted, rtol=1e-6)
    assert np.allclose(norms.columns["blk.0.attn_norm.weight"][0], 1 / wanted, rtol=1e-6)
    assert np.ptp(np.log2(wanted)) > 2

    up, down = (floats(tensors[f"blk.0.ffn_{n}.weight"]) for n in ("up", "down"))
    x = measured[f"blk.0.ffn_down.weight.{kind}"].data.reshape(-1)
    x = np.sqrt(x / 8) if rotated else x
    columns = np.linalg.norm(down, axis=0)
    for found, wanted in (
        (pairs, np.sqrt((columns if rotated else np.abs(down).max(0)) / x)),
        (without_data, np.sqrt(columns / np.linalg.norm(up, axis=1))),
    ):
        assert np.allclose(found.rows["blk.0.ffn_up.weight"], wanted, rtol=1e-6)
        assert np.allclose(found.columns["blk.0.ffn_down.weight"][0], 1 / wanted, rtol=1e-6)


def test_every_expert_has_its_own_factors(tmp_path):
    path = models.random_moe(tmp_path / "m.gguf", layers=1, merged=True, experts=4)
    _, pairs, _ = smoothings(path, statistics(path, tmp_path / "s.gguf"))
    rows = pairs.rows["blk.0.ffn_gate_up_exps.weight"].reshape(4, 512)
    columns = pairs.columns["blk.0.ffn_down_exps.weight"]
    assert (rows[:, :256] == 1).all()  # the gate's
    assert np.allclose(rows[:, 256:] * columns, 1)
    assert not np.array_equal(columns[0], columns[1])


def test_a_reader_that_cannot_take_it_keeps_the_norm_as_it_is(tmp_path):
    path = models.random_dense(tmp_path / "m.gguf", layers=1, kind="q8_0")
    stats = statistics(path, tmp_path / "s.gguf")
    norms, _, _ = smoothings(path, stats, rounded=lambda name: "attn_k" not in name)
    assert "blk.0.attn_norm.weight" not in norms.columns
    assert "blk.0.ffn_norm.weight" in norms.columns


def test_a_reader_that_stays_f16_gets_powers_of_two(tmp_path, dense):
    stats = statistics(dense, tmp_path / "s.gguf")
    norms, _, _ = smoothings(dense, stats, 0.3, rounded=lambda name: "attn_k" not in name)
    for name, whole in (("attn_norm", True), ("attn_k", True), ("ffn_norm", False)):
        exponents = np.log2(norms.columns[f"blk.0.{name}.weight"])
        assert (exponents == np.rint(exponents)).all() == whole


def test_what_is_written_is_scaled_before_it_is_rotated_and_rounded(tmp_path):
    path = models.random_moe(tmp_path / "m.gguf", layers=1, experts=4)
    norms, pairs, _ = smoothings(path, statistics(path, tmp_path / "s.gguf"))
    both = norms.joined(pairs)
    assert both.label == "smoothquant+updown"
    result = convert(path, tmp_path / "out.gguf", smoothing=both, seed=3)
    assert (result["smoothing"], result["alpha"]) == ("smoothquant+updown", 0.5)
    _, before = read(path)
    values, after = read(tmp_path / "out.gguf")
    assert values["octet.smoothing"][1] == "smoothquant+updown"
    assert values["octet.smoothing.alpha"][1] == 0.5
    s = norms.columns["blk.0.ffn_gate_inp.weight"][0]
    for name, factors in (("ffn_norm", 1 / s), ("ffn_gate_inp", s), ("attn_q_norm", 1)):
        tensor = before[f"blk.0.{name}.weight"]
        wanted = (floats(tensor) * factors).astype(np.float32)
        assert np.array_equal(floats(after[tensor.name]), wanted)
    up, down = "blk.0.ffn_up_exps.weight", "blk.0.ffn_down_exps.weight"
    for name, columns, rows in (
        (up, norms.columns[up][:, None], pairs.rows[up].reshape(4, 256, 1)),
        (down, pairs.columns[down][:, None], 1),
    ):
        wanted = (floats(before[name]) * columns * rows).reshape(-1, 256)
        got = after[name].data.reshape(len(wanted), -1)
        for row in range(0, len(wanted), 37):
            packed = reference.pack_q8_0(*reference.int8_row(wanted[row], 128, 3, 0))
            assert got[row].tobytes() == packed


def test_importance_is_that_of_the_smoothed_input():
    smoothing = Smoothing(columns={"w": np.array([[2.0, 0.5]])})
    assert smoothing.importance("w", np.array([[8.0, 1.0]])).tolist() == [[2, 4]]
    assert smoothing.importance("other", np.ones((1, 2))).tolist() == [[1, 1]]


def test_float_models_have_nothing_of_ours(tmp_path):
    path = models.random_dense(tmp_path / "m.gguf", layers=1, kind="q8_0")
    norms, _, _ = smoothings(path, statistics(path, tmp_path / "s.gguf"))
    write_float(path, tmp_path / "plain.gguf", Smoothing(), norms)
    values, tensors = read(tmp_path / "plain.gguf")
    assert not any(key.startswith("octet.") for key in values)
    assert values["general.architecture"][1] == "llama"
    assert tensors["blk.0.attn_q.weight"].tensor_type.name == "F32"
    assert tensors["blk.0.ffn_down.weight"].tensor_type.name == "Q8_0"
    _, before = read(path)
    name = "blk.0.attn_q.weight"
    assert np.array_equal(floats(tensors[name]), floats(before[name]))
