"""Integer and float products of each instruction set: the reference's bits, and near the truth."""

import kernel_data
import kernels
import numpy as np
import pytest
import reference
from numpy.testing import assert_array_equal

# format, scale group, K: one block, several, odd multiples.
CASES = [
    ("q8_0", 32, 32),
    ("q8_0", 32, 640),
    ("q8_0", 128, 128),
    ("q8_0", 128, 640),
    ("q8_0", 0, 96),
    ("q8_0", 0, 640),
    ("q8_0", 0, 2560),
    ("iq4_nl", 32, 32),
    ("iq4_nl", 32, 640),
    ("q2_0", 32, 64),
    ("q2_0", 32, 640),
    ("iq3_s", 32, 256),
    ("iq3_s", 32, 768),
    ("iq3_xxs", 32, 256),
    ("iq3_xxs", 32, 768),
    ("iq2_s", 32, 256),
    ("iq2_s", 32, 768),
    ("q4_0", 32, 640),
    ("mxfp4", 32, 640),
    ("iq4_xs", 32, 768),
    ("iq2_xs", 32, 768),
    ("iq2_xxs", 32, 768),
]


def case(name, group, k, n, rows, finite=True):
    """(weight, codes, scale, q, d) of a product of `rows` rows with n outputs."""
    blocks = kernel_data.blocks(name, n, k, group=group)
    codes, scale = reference.decode(name, blocks)
    if group != 32:  # the same scale in fewer places
        scale = scale[:, :: (group or k) // 32]
    x = kernel_data.rows(rows, k, finite=finite)
    q, d = reference.quantize_rows(x, max(k // scale.shape[1], 32))
    return kernels.Weight(name, blocks, k, scale_group=group), codes, scale, q, d


@pytest.mark.parametrize(("name", "group", "k"), CASES)
def test_bits(isa, name, group, k):
    for n, rows in ((1, 33), (7, 31), (16, 16), (17, 9), (33, 8), (31, 1), (9, 64), (15, 65)):
        weight, codes, scale, q, d = case(name, group, k, n, rows)
        assert_array_equal(weight.product(isa, q, d), reference.product(q, d, codes, scale))


@pytest.mark.parametrize(("name", "group", "k"), CASES)
def test_close_to_exact(isa, name, group, k):
    weight, codes, scale, q, d = case(name, group, k, 35, 36)
    exact, magnitude = reference.product_exact(q, d, codes, scale)
    # A product of scales below 2⁻¹²⁶ is rounded to a multiple of 2⁻¹⁴⁹, whatever its size.
    error = np.abs(weight.product(isa, q, d) - exact) - k * 127 * 128 * 2.0**-150
    # With u = 2⁻²⁴: the product of the scales and (above 2²⁴) the dot product were rounded, 2u of
    # each term; every fma rounds the sum so far, u of the sum of magnitudes.
    terms = scale.shape[1]
    assert (error <= (terms + 2) * 2.0**-24 * magnitude).all()
    # Roundings point either way, unless all terms are the same number: a constant row of weights
    # times a constant row of activations. All others come to less than 3u: in all 5u = 3e-7.
    ordinary = np.ones(error.shape, bool)
    ordinary[
        np.ix_(np.isin(np.arange(36) % 9, (4, 5)), np.isin(np.arange(35) % 7, range(1, 6)))
    ] = False
    assert (error <= 3e-7 * magnitude)[ordinary].all()
    assert np.linalg.norm(error) <= 3e-7 * np.linalg.norm(exact)


@pytest.mark.parametrize(("name", "group", "k"), CASES)
def test_not_finite_rows_stay_so(isa, name, group, k):
    weight, codes, scale, q, d = case(name, group, k, 17, 24, finite=False)
    out = weight.product(isa, q, d)
    assert_array_equal(out, reference.product(q, d, codes, scale))
    bad = np.isnan(d).any(axis=1)
    assert bad.sum() == 18
    assert not np.isfinite(out[bad]).any()
    assert np.isfinite(out[~bad]).all()


def test_largest_row_range(isa):
    """int32 holds the longest row of −128 · 127, and f32 rounds it once."""
    k = 131072
    blocks = np.zeros((2, k // 32, 34), np.uint8)
    blocks[:, :, :2] = np.array([1], np.float16).view(np.uint8)
    blocks[0, :, 2:] = 0x80
    blocks[1, :, 2:] = 127
    q = np.full((2, k), 127, np.int8)
    q[1] = -127
    d = np.ones((2, 1), np.float32)
    out = kernels.Weight("q8_0", blocks.reshape(2, -1), k, scale_group=0).product(isa, q, d)
    expected = np.outer([1, -1], [-128, 127]) * 127.0 * k
    assert_array_equal(out, expected.astype(np.float32))


@pytest.mark.parametrize(("name", "group", "k"), [c for c in CASES if c[2] < 800])
def test_float_product(isa, name, group, k):
    blocks = kernel_data.blocks(name, 17, k, group=group)
    weight = kernels.Weight(name, blocks, k, scale_group=group)
    codes, scale = reference.decode(name, blocks)
    x = kernel_data.rows(9, k)
    assert_array_equal(weight.product_float(isa, x), reference.product_float(x, codes, scale))


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "native"])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("name", "group", "k", "rotation"),
    [("q8_0", 0, 640, 128), ("q8_0", 128, 640, 64), ("q8_0", 32, 96, 0), ("iq2_s", 32, 768, 0)],
)
def test_multiply(isa, name, group, k, rotation, threads, packed):
    blocks = kernel_data.blocks(name, 33, k, group=group)
    codes, scale = reference.decode(name, blocks)
    if group != 32:
        scale = scale[:, :: (group or k) // 32]
    x = kernel_data.rows(20, k)
    turn = (rotation, 7) if rotation else None
    expected = reference.multiply(x, (codes, scale), turn)
    weight = kernels.Weight(
        name, blocks, k, scale_group=group, packed=packed, rotation=rotation, seed=7
    )
    assert_array_equal(weight.multiply(isa, x, threads), expected)


def test_fma_of_the_reference():
    """Against exact fractions, on sums made to land near the ties of f32."""
    from fractions import Fraction

    rng = np.random.default_rng(8)
    a = rng.integers(2**23, 2**24, 4000).astype(np.float32)
    b = rng.integers(2**23, 2**24, 4000).astype(np.float32)
    c = np.ldexp(rng.integers(-(2**24), 2**24, 4000).astype(np.float32), rng.integers(0, 60, 4000))
    c[:1000] = np.ldexp(np.float32(-1), 60) * rng.choice([1, -1], 1000)  # ties, a little off
    a[:500], b[:500] = 2**23 + 2, 2**12
    got = reference.fma(a, b, c)
    for x, y, z, value in zip(a, b, c, got, strict=True):
        exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
        neighbours = np.nextafter(value, np.array([-np.inf, np.inf], np.float32))
        error = abs(Fraction(float(value)) - exact)
        for other in neighbours:
            distance = abs(Fraction(float(other)) - exact)
            assert error < distance or (error == distance and not value.view(np.int32) & 1)
