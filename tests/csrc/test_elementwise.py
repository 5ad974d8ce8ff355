"""rotate, quantize, exp, GLU and sums of each instruction set against the reference, bit by bit."""

import kernel_data
import kernels
import numpy as np
import pytest
import reference
from numpy.testing import assert_array_equal

# assert_array_equal takes NaNs for equal; −0 and 0 too, so where zeros matter, view the bits.


def sweep() -> np.ndarray:
    """Arguments of exp: dense over [−100, 100], every magnitude, and what is no number."""
    rng = np.random.default_rng(3)
    dense = np.linspace(-100, 100, 400_001, dtype=np.float32)
    magnitudes = np.ldexp(rng.uniform(1, 2, 4000), rng.integers(-140, 127, 4000)).astype(np.float32)
    special = np.array(
        [0, -0.0, 1e-45, -1e-45, 87, -87, 88, -88, np.inf, -np.inf, np.nan], np.float32
    )
    return np.concatenate([dense, magnitudes, -magnitudes, special])


@pytest.mark.parametrize(
    ("k", "block"), [(32, 32), (96, 32), (64, 64), (320, 64), (128, 128), (640, 128)]
)
def test_rotate(isa, k, block):
    for finite in (True, False):
        x = kernel_data.rows(20, k, finite=finite)
        with np.errstate(invalid="ignore"):
            expected = reference.rotate_rows(x, block, 77)
        assert_array_equal(kernels.rotate(isa, x, block, 77), expected)


def test_rotation_of_rows_is_that_of_the_file():
    x = kernel_data.rows(3, 640)
    expected = [reference.rotate(row, 128, 5, np.float32) for row in x]
    assert_array_equal(reference.rotate_rows(x, 128, 5), expected)


@pytest.mark.parametrize(
    ("k", "group"), [(32, 32), (640, 32), (640, 128), (640, 640), (96, 96), (4096, 4096)]
)
@pytest.mark.parametrize("finite", [True, False])
def test_quantize(isa, k, group, finite):
    x = kernel_data.rows(40, k, finite=finite)
    q, d = kernels.quantize(isa, x, group)
    expected_q, expected_d = reference.quantize_rows(x, group)
    assert_array_equal(d, expected_d)
    assert_array_equal(q, expected_q)


def test_quantize_ties(isa):
    x = np.arange(-127, 127.25, 0.5, dtype=np.float32)
    x = np.concatenate([x, np.nextafter(x, np.float32(0)), np.nextafter(x, 2 * x)])
    x = x[np.abs(x) <= 127]
    rows = np.zeros((len(x), 32), np.float32)
    rows[:, 0] = 127  # so that d = 1
    rows[:, 5] = x
    q, d = kernels.quantize(isa, rows, 32)
    assert (d == 1).all()
    assert_array_equal(q[:, 5], [reference.round_away(float(v)) for v in x])


def test_quantize_error_is_half_a_step(isa):
    x = kernel_data.rows(9, 640)
    q, d = kernels.quantize(isa, x, 32)
    steps = np.repeat(d, 32, axis=1).astype(np.float64)
    normal = steps >= 2.0**-126  # a subnormal step is itself rounded coarsely
    error = np.abs(x - q * steps)
    assert (error[normal] <= 0.5000001 * steps[normal]).all()


def test_exp_is_the_reference():
    x = sweep()
    assert_array_equal(kernels.exp(x).view(np.int32), reference.exp(x).view(np.int32))


def test_exp_is_within_one_ulp():
    rng = np.random.default_rng(4)
    x = np.concatenate([sweep(), rng.uniform(-87, 88, 2_000_000), rng.uniform(-1, 1, 500_000)])
    x = x.astype(np.float32)
    x = x[(x >= -87) & (x <= 88)]
    # The f64 exponential is good to 1e-16: 1e-9 of an f32 ulp.
    true = np.exp(x.astype(np.float64))
    ulp = np.spacing(true.astype(np.float32)).astype(np.float64)
    worst = (np.abs(kernels.exp(x) - true) / ulp).max()
    assert worst < 1


@pytest.mark.parametrize("op", ["swiglu", "geglu", "reglu"])
def test_glu(isa, op):
    g = sweep()
    u = np.random.default_rng(5).standard_normal(g.size).astype(np.float32)
    u[-30:] = [np.inf, -np.inf, np.nan] * 10
    assert_array_equal(kernels.glu(isa, op, g, u), reference.glu(op, g, u))


def silu(x):
    return x / (1 + np.exp(-x))


def gelu(x):
    """x/2 · (1 + tanh(…)), in the form that does not cancel where tanh is near −1."""
    return x / (1 + np.exp(-2 * np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


@pytest.mark.parametrize(
    ("op", "act"), [("swiglu", silu), ("geglu", gelu), ("reglu", lambda x: np.maximum(x, 0))]
)
def test_glu_is_the_activation(isa, op, act):
    g = np.linspace(-30, 30, 100_001, dtype=np.float32)
    got = kernels.glu(isa, op, g, np.ones_like(g))
    with np.errstate(over="ignore"):
        true = act(g.astype(np.float64))
    # silu: exp, sum and quotient each err by an ulp or less: 3 · 2⁻²³. gelu's exponent reaches 88
    # and carries 3 roundings, each of 2⁻²⁴ · |z|, into e^z where that is not yet negligible. Below
    # e⁻⁸⁷ both stop at it; what is left there is beneath any step of the activations' grid.
    relative = {"swiglu": 4e-7, "geglu": 2e-5, "reglu": 0}[op]
    assert (np.abs(got - true) <= relative * np.abs(true) + 3e-35).all()
    near = np.abs(true) > 1e-3
    assert (np.abs(got - true)[near] <= 4e-6 * np.abs(true)[near]).all()


def test_weighted_sum(isa):
    rng = np.random.default_rng(6)
    for count in (1, 2, 3, 8):
        for n in (1, 15, 17, 640):
            y = rng.standard_normal((count, n)).astype(np.float32)
            w = rng.random(count).astype(np.float32)
            assert_array_equal(kernels.weighted_sum(isa, y, w), reference.weighted_sum(y, w))
