"""The search for scales of IQ4_NL and Q2_0, against the best that exists, found by brute force."""

import numpy as np
import pytest
from llama_octet.gguf_tools import experts, ggml, scalar_codes

VALUES = {
    "iq4_nl": [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113],
    "q2_0": [-1, 0, 1, 2],
}
COLUMNS = 128


def nearest(x, d, values):
    return values[np.abs(x[:, None] / d - values).argmin(axis=1)]


def smallest_error(x, w, values):
    """The least Σ w·(x − d·q)² over all real d and all q.

    The nearest integers only change where some x / d crosses halfway between two values. Between
    two neighbours of all those d they are constant, and d has an exact best.
    """
    halves = (values[1:] + values[:-1]) / 2
    edges = np.sort(np.concatenate([x / h for h in halves if h] or [[]]))
    middles = np.concatenate([edges[:1] - 1, (edges[1:] + edges[:-1]) / 2, edges[-1:] + 1])
    least = np.sum(w * x * x)
    for d in middles[middles != 0]:
        q = nearest(x, d, values)
        if q.any():
            d = np.sum(w * x * q) / np.sum(w * q * q)
            least = min(least, np.sum(w * (x - d * q) ** 2))
    return least


def weights(rows, distribution, seed=1):
    rng = np.random.default_rng(seed)
    draw = rng.standard_normal if distribution == "normal" else rng.standard_cauchy
    return (0.02 * draw((rows, COLUMNS))).astype(np.float32)


def importances(seed=2):
    return np.exp(np.random.default_rng(seed).standard_normal(COLUMNS)).astype(np.float32)


def error(name, raw, w, importance):
    return np.sum(importance * (ggml.to_float(ggml.type_by_name(name), raw, COLUMNS) - w) ** 2)


@pytest.mark.parametrize("distribution", ["normal", "cauchy"])
@pytest.mark.parametrize("even", [True, False])
@pytest.mark.parametrize("name", ["iq4_nl", "q2_0"])
def test_the_error_is_close_to_the_smallest_possible(name, even, distribution):
    values = np.array(VALUES[name], float)
    w = weights(8, distribution)
    importance = np.ones(COLUMNS) if even else importances().astype(float)
    raw = scalar_codes.quantize(name, w, None if even else importance)
    block = scalar_codes.CODES[name].block
    x = w.astype(float).reshape(-1, block)
    of = np.tile(importance.reshape(-1, block), (len(w), 1))
    # Block by block, so that a single large one does not hide the others.
    decoded = ggml.to_float(ggml.type_by_name(name), raw, COLUMNS).reshape(x.shape)
    found = np.sum(of * (decoded - x) ** 2, axis=1)
    least = np.array([smallest_error(*pair, values) for pair in zip(x, of, strict=True)])
    scale = np.sum(of * x * x, axis=1)
    assert np.all(found >= least * (1 - 1e-6))
    assert np.mean((found - least) / scale) < 0.01 * np.mean(least / scale)


@pytest.mark.parametrize("even", [True, False])
@pytest.mark.parametrize("name", ["iq4_nl", "q2_0"])
def test_the_error_is_below_the_runtimes(name, even):
    w, importance = weights(64, "normal"), importances()
    kind, given = ggml.type_by_name(name), None if even else importance
    of = np.ones(COLUMNS) if even else importance
    ours = error(name, scalar_codes.quantize(name, w, given), w, of)
    assert ours < 0.95 * error(name, ggml.quantize(kind, w, given), w, of)


@pytest.mark.parametrize("name", ["iq4_nl", "q2_0"])
def test_weights_the_type_can_hold_come_back_exactly(name):
    rng, block = np.random.default_rng(3), scalar_codes.CODES[name].block
    q = rng.choice(VALUES[name], (32, COLUMNS // block, block))
    q[:, :, 0] = VALUES[name][-1]  # both ends, so that no other scale holds them too
    q[:, :, 1] = VALUES[name][0]
    d = rng.choice([-1, 1], (32, COLUMNS // block, 1)) * 2.0 ** rng.integers(-20, 6, (32, 1, 1))
    w = (d * q).reshape(32, COLUMNS).astype(np.float32)
    raw = scalar_codes.quantize(name, w, importances())
    assert np.array_equal(ggml.to_float(ggml.type_by_name(name), raw, COLUMNS), w)


@pytest.mark.parametrize("name", ["iq4_nl", "q2_0"])
def test_rows_do_not_depend_on_each_other(name):
    w, importance = weights(65, "normal"), importances()
    together = scalar_codes.quantize(name, w, importance)
    alone = [scalar_codes.quantize(name, w[i : i + 1], importance) for i in range(len(w))]
    assert b"".join(alone) == together


@pytest.mark.parametrize("name", ["iq4_nl", "q2_0"])
def test_extremes(name):
    kind = ggml.type_by_name(name)
    for value in (0, 65504, -65504, 2**-24, 1e-30):
        w = np.zeros((2, COLUMNS), np.float32)
        w[0] = value
        w[1, 5] = value
        back = ggml.to_float(kind, scalar_codes.quantize(name, w, importances()), COLUMNS)
        # IQ4_NL has no zero: the value nearest to it is a hundredth of the largest.
        assert np.all(np.abs(back - w) <= 0.01 * abs(value) + 2.0**-24), value


@pytest.mark.parametrize("name", ["iq4_nl", "q2_0"])
def test_experts_use_it_and_refuse_what_it_cannot_hold(name):
    kind, w, importance = ggml.type_by_name(name), weights(4, "normal"), importances()
    table = np.stack([np.ones(COLUMNS), importance])
    assert experts.quantize(kind, w, table, 1) == scalar_codes.quantize(name, w, importance)
    for bad in (np.nan, np.inf, 1e30):
        w[2, 3] = bad
        with pytest.raises(ValueError, match="not finite or beyond"):
            experts.quantize(kind, w, None, 0)
