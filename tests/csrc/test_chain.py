"""The fused expert layer against the reference, bit by bit."""

import kernel_data
import kernels
import numpy as np
import pytest
import reference
from numpy.testing import assert_array_equal

EXPERTS, USED, TOKENS = 4, 2, 19


def experts(name, n, k, seed):
    """Blocks (experts, n, bytes) without the extreme rows, and their (codes, scale) each."""
    blocks = []
    for e in range(EXPERTS):
        drawn = kernel_data.blocks(name, 33 * n, k, 10 * seed + e)
        d = drawn.reshape(len(drawn), -1, reference.BLOCKS[name][1])[:, 0, :2].copy().view("<f2")
        blocks.append(drawn[np.abs(d[:, 0]) < 1][:n])
    return np.array(blocks), [reference.decode(name, b) for b in blocks]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("gate_up", "down", "k", "n_ff", "n_out", "op"),
    [
        ("iq3_s", "iq4_nl", 256, 64, 33, "swiglu"),
        ("iq3_xxs", "q2_0", 256, 64, 17, "geglu"),
        ("iq2_s", "iq4_nl", 512, 96, 16, "reglu"),
        ("q8_0", "q8_0", 96, 32, 9, "swiglu"),
        ("iq2_xxs", "q4_0", 256, 32, 15, "swiglu"),
        ("iq4_xs", "mxfp4", 256, 32, 16, "geglu"),
    ],
)
def test_chain(isa, gate_up, down, k, n_ff, n_out, op, threads):
    gate_blocks, gate = experts(gate_up, n_ff, k, 1)
    up_blocks, up = experts(gate_up, n_ff, k, 2)
    down_blocks, down_pairs = experts(down, n_out, n_ff, 3)
    rng = np.random.default_rng(9)
    x = rng.standard_normal((TOKENS, k)).astype(np.float32)
    ids = rng.integers(0, EXPERTS - 1, (TOKENS, USED))  # the last expert has no rows
    ids[:, 1] = 1  # and one has many
    w = rng.random((TOKENS, USED)).astype(np.float32)
    expected = reference.expert_layer(x, ids, w, gate, up, down_pairs, op)
    assert np.isfinite(expected).all() and np.abs(expected).max() > 0

    down_weight = kernels.Weight(down, down_blocks, n_ff)
    apart = (kernels.Weight(gate_up, gate_blocks, k), kernels.Weight(gate_up, up_blocks, k))
    merged = kernels.Weight(
        gate_up, np.concatenate([gate_blocks, up_blocks], axis=1), k, packed=False
    )
    for first, second in (apart, (merged, None)):
        out = kernels.chain(isa, first, second, down_weight, op, x, ids, w, threads)
        assert_array_equal(out, expected)
    alone = kernels.chain(isa, *apart, down_weight, op, x[7:8], ids[7:8], w[7:8], threads)
    assert_array_equal(alone[0], expected[7])


def test_expert_that_is_not_there(isa):
    blocks, _ = experts("q8_0", 32, 32, 1)
    weight = kernels.Weight("q8_0", blocks, 32)
    for wrong in (-1, EXPERTS):
        with pytest.raises(kernels.Refused, match="expert"):
            kernels.chain(
                isa,
                weight,
                kernels.Weight("q8_0", blocks, 32),
                weight,
                "swiglu",
                np.ones((1, 32)),
                [[wrong]],
                [[1]],
            )
