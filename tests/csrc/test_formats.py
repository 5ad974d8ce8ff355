"""What weights become when they are packed: the file's values, exactly."""

import gguf
import kernel_data
import kernels
import numpy as np
import pytest
import reference
from numpy.testing import assert_array_equal

FORMATS = tuple(reference.BLOCKS)


def lengths(name):
    """One block, and an odd number of them that no larger format divides."""
    weights = reference.BLOCKS[name][0]
    return (weights, 640 if weights < 256 else 768)


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "native"])
@pytest.mark.parametrize("name", FORMATS)
def test_weights_are_the_reference(name, packed):
    for k in lengths(name):
        for n in (1, 16, 33):
            blocks = kernel_data.blocks(name, n, k)
            codes, scale = reference.decode(name, blocks)
            expected = codes * np.repeat(scale, k // scale.shape[1], axis=1)
            assert_array_equal(
                kernels.Weight(name, blocks, k, packed=packed).dequantize(), expected
            )


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "q2_0"])
def test_weights_are_what_gguf_says(name):
    """Q2_0 is unknown to gguf-py: for it the reference alone stands."""
    for k in lengths(name):
        blocks = kernel_data.blocks(name, 33, k)
        expected = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[name.upper()])
        assert_array_equal(kernels.Weight(name, blocks, k).dequantize(), expected)


@pytest.mark.parametrize("group", [0, 128])
def test_shared_scales(group):
    blocks = kernel_data.blocks("q8_0", 17, 640, group=group)
    expected = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType.Q8_0)
    assert_array_equal(
        kernels.Weight("q8_0", blocks, 640, scale_group=group).dequantize(), expected
    )
    blocks[7, 34 * 3] ^= 1
    with pytest.raises(kernels.Refused, match="scale"):
        kernels.Weight("q8_0", blocks, 640, scale_group=group)


def test_experts_lie_one_after_another():
    blocks = np.stack([kernel_data.blocks("iq4_nl", 19, 96, seed) for seed in range(3)])
    weight = kernels.Weight("iq4_nl", blocks, 96)
    for e in range(3):
        expected = gguf.quants.dequantize(blocks[e], gguf.GGMLQuantizationType.IQ4_NL)
        assert_array_equal(weight.dequantize(e), expected)


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("q8_0", 8.5),
        ("q4_0", 4.5),
        ("mxfp4", 4.5),
        ("iq4_xs", 4.32),
        ("iq2_xs", 3.57),
        ("iq2_xxs", 3.32),
        ("iq4_nl", 4.5),
        ("q2_0", 2.25),
        ("iq3_s", 4.32),
        ("iq3_xxs", 4.32),
        ("iq2_s", 3.57),
    ],
)
def test_packed_size(name, bits):
    """Bits per weight in memory, as the README says; a panel's parts are rounded up to 64 bytes."""
    k = 2560
    size = kernels.Weight(name, kernel_data.blocks(name, 32, k), k).packed_bytes
    assert size * 8 / (32 * k) <= bits
    assert kernels.Weight(name, kernel_data.blocks(name, 32, k), k, packed=False).packed_bytes == 0
