"""Expert layers on a SYCL device against the CPU engine, bit by bit."""

import kernels
import numpy as np
import pytest
from layers import EXPERTS, FLOAT_PAIRS, PAIRS, activations, layer
from llama_octet.errors import OctetError
from llama_octet.gpu_layers import Device
from numpy.testing import assert_array_equal


@pytest.fixture(scope="module")
def device(found):
    # Two tiles a thread throughout: fewer programs to compile.
    return Device(found, cpu=True, tiles=2)


@pytest.mark.parametrize(("gate_up", "down"), PAIRS)
def test_codebook_chain(device, gate_up, down):
    cpu, there = layer(device, gate_up, down, 512, 64, 48)
    for tokens in (1, 7, 70):
        x, ids, w = activations(tokens, 4, 512)
        expected = kernels.chain("scalar", *cpu, "swiglu", x, ids, w)
        assert np.isfinite(expected).all() and np.abs(expected).max() > 0
        assert_array_equal(device.chain(*there, "swiglu", x, ids, w), expected)


@pytest.mark.parametrize(
    ("group", "k", "n_ff", "rotation"), [(32, 96, 32, 0), (128, 384, 128, 128), (0, 320, 96, 32)]
)
def test_int8_chain(device, group, k, n_ff, rotation):
    cpu, there = layer(device, "q8_0", "q8_0", k, n_ff, 16, group, rotation)
    x, ids, w = activations(40, 3, k)
    expected = kernels.chain("scalar", *cpu, "geglu", x, ids, w)
    assert np.isfinite(expected).all() and np.abs(expected).max() > 0
    assert_array_equal(device.chain(*there, "geglu", x, ids, w), expected)


def test_merged_gate_up(device):
    cpu, there = layer(device, "iq3_s", "iq4_nl", 256, 64, 32, merged=True)
    x, ids, w = activations(21, 2, 256)
    expected = kernels.chain("scalar", *cpu, "reglu", x, ids, w)
    assert_array_equal(device.chain(*there, "reglu", x, ids, w), expected)


@pytest.mark.parametrize(("tiles", "work_groups"), [(0, True), (8, False)])
def test_tiles_and_work_groups(found, tiles, work_groups):
    device = Device(found, cpu=True, tiles=tiles, work_groups=work_groups)
    cpu, there = layer(device, "iq3_s", "iq4_nl", 256, 32, 16)
    x, ids, w = activations(130, 2, 256)
    ids[:, 0] = 5  # 130 rows of one expert
    expected = kernels.chain("scalar", *cpu, "swiglu", x, ids, w)
    assert_array_equal(device.chain(*there, "swiglu", x, ids, w), expected)


def test_product_alone(device):
    (cpu, _, _), (there, _, _) = layer(device, "iq2_s", "q2_0", 256, 64, 16)
    for x_rows in (1, 3):
        x, ids, _ = activations(15 * x_rows, 3, 256)
        x, ids = x.reshape(15, x_rows, 256), ids[:15]
        expected = kernels.multiply_by_expert("scalar", cpu, x, ids)
        assert_array_equal(device.multiply_by_expert(there, x, ids), expected)


def test_values_that_are_not_finite(device):
    _, there = layer(device, "iq3_s", "iq4_nl", 256, 32, 16)
    x, ids, w = activations(6, 2, 256)
    x[:3, 17] = [np.nan, np.inf, -np.inf]
    out = device.chain(*there, "swiglu", x, ids, w)
    assert np.isnan(out[:3]).all() and np.isfinite(out[3:]).all()


@pytest.mark.parametrize(("gate_up", "down"), [*PAIRS, ("q8_0", "q8_0"), *FLOAT_PAIRS])
def test_half_chain(device, gate_up, down):
    """fp16 operands: each rounded once, to 11 bits; sums in f32."""
    cpu, there = layer(device, gate_up, down, 256, 64, 32, rotation=0)
    x, ids, w = activations(40, 4, 256)
    gate, up, last = ([c.dequantize(e) for e in range(EXPERTS)] for c in cpu)
    expected = np.zeros((40, 32))
    bound = np.zeros((40, 32))
    for t in range(40):
        for e, weight in zip(ids[t], w[t], strict=True):
            a, b = gate[e].astype(float) @ x[t], up[e].astype(float) @ x[t]
            h = a / (1 + np.exp(-a)) * b
            expected[t] += weight * (last[e].astype(float) @ h)
            # Relative 2^-11 from x and weights each, through two products.
            size = np.abs(gate[e]) @ np.abs(x[t]), np.abs(up[e]) @ np.abs(x[t])
            dh = 2.0**-10 * 1.1 * (size[0] * np.abs(b) + size[1] * np.abs(a)) + 2.0**-10 * np.abs(h)
            bound[t] += weight * (np.abs(last[e]) @ (dh + 2.0**-10 * np.abs(h)))
    out = device.chain(*there, "swiglu", x, ids, w, half=True)
    assert (np.abs(out - expected) <= bound + 1e-6).all()
    assert np.abs(out - expected).max() < 0.01 * np.abs(expected).max()
    if (gate_up, down) in FLOAT_PAIRS:  # there is nothing else to choose
        assert_array_equal(device.chain(*there, "swiglu", x, ids, w), out)


def test_id_that_is_no_expert(device):
    _, there = layer(device, "iq3_s", "iq4_nl", 256, 32, 16)
    x, ids, w = activations(2, 2, 256)
    for wrong in (-1, EXPERTS):
        ids[1, 1] = wrong
        with pytest.raises(OctetError, match="expert"):
            device.chain(*there, "swiglu", x, ids, w)


def test_nothing_to_do(device):
    _, there = layer(device, "iq3_s", "iq4_nl", 256, 32, 16)
    x, ids, w = (a[:0] for a in activations(2, 2, 256))
    assert device.chain(*there, "swiglu", x, ids, w).shape == (0, 16)
