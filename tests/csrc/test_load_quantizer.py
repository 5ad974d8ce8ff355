"""int8 on load gives the integers that the converter writes."""

import math

import kernels
import numpy as np
import pytest
import reference
from llama_octet.gguf_tools import int8, rotation
from numpy.testing import assert_array_equal


def weights(dtype) -> np.ndarray:
    """Rows of ordinary weights, zeros, outliers, values that round to ties, subnormals."""
    rng = np.random.default_rng(12)
    w = rng.standard_normal((24, 640)) * 0.05
    w[1] = 0
    w[2, 5] = 40
    w[3] = np.arange(640) % 255 - 127
    w[4] = (np.arange(640) % 64 - 31.5) / 127
    w[5] *= 1e-6
    w[6, :320] = 0
    w[7] = 0.015625
    w[8] *= 1e3
    if dtype == np.float32:
        w[9] *= 1e-30
        w[10] *= 1e-42
        w[11] *= 8e6 / np.abs(w[11]).max()  # the largest that fp16 scales can carry
    return w.astype(dtype).astype(np.float32)


@pytest.mark.parametrize("group", [0, 128])
@pytest.mark.parametrize("block", [0, 32, 64, 128])
@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=["f32", "f16"])
def test_same_integers(dtype, block, group):
    w = weights(dtype)
    if block:
        w = w[np.abs(w).max(axis=1) < 1e5]  # a rotated outlier can pass what fp16 scales carry
    got = kernels.quantize_weights(w, block, 321, group)
    q, d = int8.quantize(rotation.rotate(w, block, 321), group)
    packed = np.frombuffer(int8.pack(q, d), np.uint8).reshape(got.shape)
    assert_array_equal(got, packed)
    for i in (0, 3, 6):  # the reference is slow
        row = reference.pack_q8_0(*reference.int8_row(w[i], block, 321, group))
        assert got[i].tobytes() == row


def test_block_of_any_width():
    rng = np.random.default_rng(13)
    for k, block in ((576, 64), (96, 32), (1536, 128), (2560, 128)):
        w = rng.standard_normal((3, k)).astype(np.float32)
        assert rotation.block_for(k, 128) == block
        q, d = int8.quantize(rotation.rotate(w, block, 0), 0)
        got = kernels.quantize_weights(w, block, 0, 0)
        assert got.tobytes() == int8.pack(q, d)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e10])
def test_refused_like_the_converter_does(value):
    w = np.zeros((2, 128), np.float32)
    w[1, 3] = value
    with pytest.raises(kernels.Refused, match="finite"):
        kernels.quantize_weights(w, 128, 0, 0)
    with pytest.raises(ValueError, match="finite"):
        int8.quantize(rotation.rotate(w, 0, 0), 0)


def test_fp16_scale_rounds_once():
    """amax / 127 beside the middle of two fp16: going through f32 first would round twice."""
    rng = np.random.default_rng(14)
    half = rng.integers(0x0400, 0x7000, 500).astype(np.uint16).view(np.float16).astype(np.float64)
    middle = half + np.spacing(half.astype(np.float16)).astype(np.float64) / 2
    amax = (middle * 127).astype(np.float32)
    w = np.zeros((1500, 32), np.float32)
    w[:, 0] = np.concatenate(
        [np.nextafter(amax, np.float32(0)), amax, np.nextafter(amax, np.float32(np.inf))]
    )
    w[:, 1:] = np.linspace(-1, 1, 31, dtype=np.float32) * w[:, :1]
    q, d = int8.quantize(w.astype(np.float64), 0)
    assert kernels.quantize_weights(w, 0, 0, 0).tobytes() == int8.pack(q, d)


@pytest.mark.parametrize("block", [32, 128])
def test_rotation_is_scaled_by_a_number_rounded_once(block):
    """1/√block differs in its last bit from √(1/block); rows where that decides an integer."""
    right, twice_rounded = math.sqrt(1 / block), 1 / math.sqrt(block)
    assert right != twice_rounded
    d = 2.0**-10
    rows, expected = [], []
    for k in range(1, 127):
        sum_ = (k + 0.5) * d / right
        for _ in range(4):
            sum_ = np.nextafter(sum_, 0)
        for _ in range(8):
            sum_ = np.nextafter(sum_, np.inf)
            q = reference.round_away(float(sum_ * right / d))
            if q != reference.round_away(float(sum_ * twice_rounded / d)):
                # The first rotated column is the sum of three weights, to the last bit.
                row = np.zeros(2 * block, np.float32)
                rest = float(sum_)
                for j in range(3):
                    row[j] = np.float32(rest)
                    rest -= float(row[j])
                    row[j] *= reference.sign(j, 0)
                assert rest == 0
                row[block] = 127 * d / right  # makes the scale d
                rows.append(row)
                expected.append(q)
    assert len(rows) > 10
    w = np.array(rows)
    got = kernels.quantize_weights(w, block, 0, 0)
    assert_array_equal(got[:, 2].view(np.int8), expected)
    q, scale = int8.quantize(rotation.rotate(w, block, 0), 0)
    assert got.tobytes() == int8.pack(q, scale)
