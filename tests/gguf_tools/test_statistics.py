import numpy as np
import pytest
import reference
from llama_octet.gguf_tools import rotation
from llama_octet.gguf_tools.statistics import Sums


def rows(count, columns=64, seed=0):
    return np.random.default_rng(seed).standard_normal((count, columns)).astype(np.float32)


def rotated(x, block, seed):
    return np.stack([reference.rotate(row, block, seed) for row in x])


def test_a_dense_input_in_two_batches():
    sums, x = Sums(1, 64, 32, 7, gram=True), rows(10)
    sums.add(x[:4])
    sums.add(x[4:])
    found, turned = sums.statistics(), rotated(x.astype(np.float64), 32, 7)
    assert found.counts.tolist() == [10]
    assert np.allclose(found.sum2[0], (x.astype(np.float64) ** 2).sum(0), rtol=1e-6)
    assert np.array_equal(found.largest[0], np.abs(x).max(0))
    assert np.allclose(found.rotated_sum2[0], (turned**2).sum(0), rtol=1e-5)
    assert np.allclose(found.rotated_largest[0], np.abs(turned).max(0), rtol=1e-5)
    assert np.allclose(sums.gram[0], x.T @ x, rtol=1e-4, atol=1e-4)


def test_each_expert_sees_its_own_rows():
    sums, x = Sums(4, 64, 64, 0, gram=True), rows(6)
    experts = np.array([[0, 3], [3, 1], [0, 1], [1, 0], [3, 0], [1, 3]], np.int32)
    sums.add(x, experts)
    found, turned = sums.statistics(), rotated(x.astype(np.float64), 64, 0)
    assert found.seen.tolist() == [True, True, False, True]
    for expert in range(4):
        own = (experts == expert).any(axis=1)
        assert found.counts[expert] == own.sum()
        assert np.allclose(found.sum2[expert], (x[own] ** 2).sum(0), rtol=1e-5)
        assert np.array_equal(found.largest[expert], np.abs(x[own]).max(0, initial=0))
        assert np.allclose(found.rotated_sum2[expert], (turned[own] ** 2).sum(0), rtol=1e-5)
        assert np.allclose(sums.gram[expert], x[own].T @ x[own], rtol=1e-4, atol=1e-4)


def test_without_rotation_and_gram_there_is_nothing_of_them():
    sums = Sums(1, 40, 0, 0, gram=False)
    sums.add(rows(3, 40))
    found = sums.statistics()
    assert found.rotated_sum2 is None
    assert found.rotated_largest is None
    assert sums.gram is None


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite(value):
    x = rows(3)
    x[1, 5] = value
    with pytest.raises(ValueError, match="not finite"):
        Sums(1, 64, 64, 0, gram=False).add(x)


@pytest.mark.parametrize("block", rotation.BLOCKS)
def test_hadamard_is_the_rotation_without_signs(block):
    x = rows(5, block).astype(np.float64)
    signs = rotation.signs(block, 11)
    by_matrix = (x * signs) @ rotation.hadamard(block).astype(np.float64)
    # Entries are ±1/sqrt(block) rounded to f32
    assert np.allclose(by_matrix, rotation.rotate(x, block, 11), rtol=0, atol=1e-5)
