import numpy as np
import pytest
import reference
from llama_octet.gguf_tools import rotation


def test_signs_are_the_known_ones():
    # Worked out once with the loop in reference.py: a change of either would make files unreadable.
    bits = "".join("1" if s < 0 else "0" for s in rotation.signs(64, 0))
    assert bits == "0010011001011101001011101000010010000000110010000110110011010100"
    bits = "".join("1" if s < 0 else "0" for s in rotation.signs(64, 65535))
    assert bits == "1001000011111000001111011011010111111011101101001010000101100100"


@pytest.mark.parametrize("seed", [0, 1, 4711, 32768, 65535])
def test_signs_agree_with_the_reference(seed):
    signs = rotation.signs(140_000, seed)
    for j in [*range(300), *range(65_500, 65_600), *range(131_000, 131_200), 139_999]:
        assert signs[j] == reference.sign(j, seed), j


def test_signs_are_balanced_and_differ_by_seed():
    a, b = rotation.signs(4096, 0), rotation.signs(4096, 1)
    assert abs(a.mean()) < 0.05
    assert abs((a * b).mean()) < 0.05


@pytest.mark.parametrize("block", [32, 64, 128])
@pytest.mark.parametrize("seed", [0, 65535])
def test_rotation_is_the_references_to_the_last_bit(block, seed):
    weights = np.random.default_rng(seed).standard_normal((3, 384), np.float32)
    rotated = rotation.rotate(weights, block, seed)
    assert rotated.dtype == np.float64
    for row, got in zip(weights, rotated, strict=True):
        assert (got == reference.rotate(row, block, seed)).all()


@pytest.mark.parametrize("block", [0, 32, 64, 128])
def test_products_survive_rotation(block):
    rng = np.random.default_rng(7)
    weights, x = rng.standard_normal((16, 640)), rng.standard_normal((5, 640))
    rotated = rotation.rotate(x, block, 3) @ rotation.rotate(weights, block, 3).T
    assert np.allclose(rotated, x @ weights.T, rtol=0, atol=1e-12)


def test_an_outlier_is_spread_over_its_block():
    row = np.zeros((1, 256))
    row[0, 200] = 1
    rotated = rotation.rotate(row, 128, 0)[0]
    assert (rotated[:128] == 0).all()
    assert np.allclose(np.abs(rotated[128:]), 1 / np.sqrt(128))


@pytest.mark.parametrize(
    ("columns", "wished", "block"),
    [
        *((640, 128, 128), (576, 128, 64), (1536, 128, 128), (96, 128, 32), (32, 128, 32)),
        *((33, 128, 0), (1, 128, 0), (640, 64, 64), (640, 32, 32), (640, 0, 0), (96, 64, 32)),
    ],
)
def test_block_for(columns, wished, block):
    assert rotation.block_for(columns, wished) == block == reference.rotation_block(columns, wished)
