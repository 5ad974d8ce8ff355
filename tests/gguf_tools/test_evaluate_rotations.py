"""The choices that are compared: exact without rounding, and as in files where they can be."""

import numpy as np
import pytest
from llama_octet.gguf_tools import rotation
from llama_octet.gguf_tools.evaluate import rotations
from llama_octet.gguf_tools.evaluate.rotations import Choice


@pytest.fixture(scope="module")
def product():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((5, 512))
    x[:, 3] *= 40
    return rng.standard_normal((16, 512)), x


@pytest.mark.parametrize("block", [32, 64, 128])
def test_it_is_the_rotation_of_files(product, block):
    mine = rotations.turned(product[0], Choice(block, 0, 0, seed=5))
    assert np.allclose(mine, rotation.rotate(product[0], block, 5), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("signs", [rotations.hash16, rotations.hash32])
def test_rotating_changes_no_product(product, signs):
    w, x = product
    choice = Choice(256, None, None, signs)
    assert np.allclose(rotations.turned(x, choice) @ rotations.turned(w, choice).T, x @ w.T)
    assert rotations.error(w, x, choice) == 0


def test_signs_are_even_and_follow_the_seed():
    for signs in (rotations.hash16, rotations.hash32):
        some = np.array([signs(4096, seed) for seed in range(4)])
        assert set(np.unique(some)) == {-1, 1}
        # 4 deviations of a mean of 4096 fair signs, and of the products of two rows of them
        assert np.all(np.abs(some.mean(axis=1)) < 4 / 64)
        assert np.all(np.abs(some[0] @ some[1:].T / 4096) < 4 / 64)


def test_a_large_channel_wants_rotation_and_finer_scales(product):
    plain, turned, finer = (
        rotations.percent([product], Choice(b, g, g)) for b, g in ((0, 0), (128, 0), (128, 32))
    )
    assert plain > turned > finer > 0
    assert rotations.percent([product], Choice(1024, 0, 0)) is None
