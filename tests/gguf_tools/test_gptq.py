"""GPTQ rounding, against the method as its paper states it: column by column."""

import numpy as np
import pytest
from llama_octet.gguf_tools import experts, ggml, gptq, int8, scalar_codes

ROWS, COLUMNS = 12, 256


def inputs(seed=0):
    """Mean of x·xᵀ of correlated inputs, f64 (COLUMNS, COLUMNS), and weights (ROWS, COLUMNS)."""
    rng = np.random.default_rng(seed)
    mix = rng.standard_normal((COLUMNS, COLUMNS)) * np.exp(-np.arange(COLUMNS) / 60)
    x = rng.standard_normal((4 * COLUMNS, COLUMNS)) @ mix.T
    return x.T @ x / len(x), 0.05 * rng.standard_normal((ROWS, COLUMNS))


def error(rounded, w, gram):
    e = rounded - w
    return np.trace(e @ gram @ e.T)


def floats(q, d):
    return (q.reshape(*d.shape, -1) * d.astype(float)[:, :, None]).reshape(q.shape)


def plain_gptq(w, gram, nearest):
    """Eq. 2 and 3 of the paper with the inverse itself: what is rounded leaves the problem."""
    damped = gram + 0.01 * np.trace(gram) / len(gram) * np.eye(len(gram))
    inverse, w, out = np.linalg.inv(damped), w.copy(), np.empty_like(w)
    for i in range(w.shape[1]):
        out[:, i] = nearest(i, w[:, i])
        w -= np.outer((w[:, i] - out[:, i]) / inverse[i, i], inverse[i])
        inverse -= np.outer(inverse[:, i], inverse[i]) / inverse[i, i]
    return out


@pytest.mark.parametrize("group", [0, 128, 32])
def test_int8_is_what_the_paper_says(group):
    gram, w = inputs()
    q, d = gptq.round_int8(w, group, gptq.factor(gram))
    _, plain = int8.quantize(w, group)
    assert np.array_equal(d, plain)
    scale = np.repeat(d.astype(float), COLUMNS // d.shape[1], axis=1)

    def nearest(i, column):
        return np.clip(np.rint(column / scale[:, i]), -127, 127) * scale[:, i]

    wanted = plain_gptq(w, gram, nearest)
    # Different order of the same sums: a value right between two integers may go either way.
    assert np.mean(np.abs(floats(q, d) - wanted) > scale / 2) < 0.002
    to_nearest = error(floats(*int8.quantize(w, group)), w, gram)
    assert error(floats(q, d), w, gram) < 0.5 * to_nearest


@pytest.mark.parametrize("name", ["iq4_nl", "q2_0"])
def test_codes_given_the_scales_are_what_the_paper_says(name):
    gram, w = inputs(1)
    kind, codes = ggml.type_by_name(name), scalar_codes.CODES[name]
    raw = gptq.round_codebook(kind, w, gptq.factor(gram))
    got = ggml.to_float(kind, raw, COLUMNS).astype(float)
    blocks = np.frombuffer(raw, np.uint8).reshape(ROWS, -1, kind.size)
    d = blocks[:, :, :2].copy().view(np.float16).astype(float)[:, :, 0]

    def nearest(i, column):
        values = d[:, i // codes.block, None] * codes.values
        return values[np.arange(ROWS), np.abs(column[:, None] - values).argmin(axis=1)]

    wanted = plain_gptq(w, gram, nearest)
    assert np.mean(np.abs(got - wanted) > 1e-6) < 0.002


@pytest.mark.parametrize("name", ["iq4_nl", "q2_0", "iq3_s"])
def test_codebooks_lose_less_than_with_importance_alone(name):
    rng = np.random.default_rng(5)
    gram, w = inputs(2)
    # Two blocks of iq3_s, the second of which depends on the first.
    spread = np.concatenate([np.eye(COLUMNS), 0.7 * np.eye(COLUMNS)])
    gram = spread @ gram @ spread.T + 0.2 * np.trace(gram) / COLUMNS * np.eye(2 * COLUMNS)
    w = np.concatenate([w, 0.05 * rng.standard_normal(w.shape)], axis=1)
    kind, importance = ggml.type_by_name(name), np.diagonal(gram).astype(np.float32)
    plain = ggml.to_float(
        kind, experts.quantize(kind, w.astype(np.float32), importance[None], 0), 512
    )
    ours = ggml.to_float(kind, gptq.round_codebook(kind, w, gptq.factor(gram)), 512)
    assert error(ours, w, gram) < 0.9 * error(plain, w, gram)


def test_uncorrelated_inputs_leave_nothing_to_make_up_for():
    _, w = inputs()
    u = gptq.factor(np.diag(np.linspace(0.1, 3, COLUMNS)))
    q, _ = gptq.round_int8(w, 0, u)
    assert np.array_equal(q, int8.quantize(w, 0)[0])
    assert gptq.factor(np.zeros((8, 8))) is None


def test_rows_do_not_depend_on_each_other():
    gram, w = inputs()
    u = gptq.factor(gram)
    q, _ = gptq.round_int8(w, 0, u)
    half, _ = gptq.round_int8(w[5:], 0, u)
    assert np.mean(q[5:] != half) < 0.002  # matrix products of another size round differently


def test_a_row_of_zeros_and_values_that_do_not_fit():
    gram, w = inputs()
    u = gptq.factor(gram)
    w[3] = 0
    q, d = gptq.round_int8(w, 0, u)
    assert not q[3].any() and d[3, 0] == 0
    w[2, 7] = np.nan
    with pytest.raises(ValueError, match="not finite"):
        gptq.round_int8(w, 0, u)
    with pytest.raises(ValueError, match="not finite"):
        gptq.round_codebook(ggml.type_by_name("iq3_s"), w, u)
