"""Expert layers on the CPU and on a device, for both to be compared."""

import kernels
import numpy as np
import reference

EXPERTS = 20  # more than a group of launches takes


def experts(name, n, k, seed, group=32):
    """Blocks (experts, n, bytes) of ordinary size."""
    rng = np.random.default_rng([seed, n, k])
    weights, size = reference.BLOCKS[name]
    b = rng.integers(0, 256, (EXPERTS, n, k // weights, size), np.uint8)
    d = rng.uniform(1e-4, 4e-3, b.shape[:3]).astype(np.float16)
    d[:, ::5] *= np.float16(0.01)  # subnormal
    if group != 32:
        d = np.repeat(d[..., :: (group or k) // 32], (group or k) // 32, axis=-1)
    if name == "iq4_xs":
        d *= np.float16(0.03)  # its integer scales go to 31, its values to 127
    if name == "mxfp4":
        b[..., 0] = rng.integers(115, 122, b.shape[:3])  # 2^-13 ... 2^-7
    else:
        b[..., :2] = d.astype("<f2")[..., None].view(np.uint8)
    return b.reshape(EXPERTS, n, -1)


def layer(device, gate_up, down, k, n_ff, n_out, group=32, rotation=0, merged=False):
    """The same layer on the CPU and on the device: ((gate, up, down), (gate, up, down))."""
    blocks = [experts(gate_up, n_ff, k, i, group) for i in (1, 2)]
    if merged:
        blocks = [np.concatenate(blocks, axis=1)]
    options = {"scale_group": group, "rotation": rotation, "seed": 7}
    sides = []
    for make in (kernels.Weight, device.weight):
        first = [make(gate_up, b, k, **options) for b in blocks]
        last = make(down, experts(down, n_out, n_ff, 3, group), n_ff, **options)
        sides.append((first[0], None if merged else first[1], last))
    return sides


def activations(tokens, used, k, seed=0):
    """x, expert ids (uneven, some experts without rows) and weights."""
    rng = np.random.default_rng([seed, tokens, k])
    x = rng.standard_normal((tokens, k)).astype(np.float32)
    x[1::5] = 0
    popular = rng.permutation(EXPERTS - 3)
    ids = np.array([rng.permutation(popular[: used + t % 12])[:used] for t in range(tokens)])
    return x, ids, rng.random((tokens, used)).astype(np.float32)


PAIRS = [(g, d) for g in ("iq3_s", "iq3_xxs", "iq2_s") for d in ("iq4_nl", "q2_0")]
# Those of which one weight has no int8 products.
FLOAT_PAIRS = [("iq2_xs", "iq4_nl"), ("iq2_xxs", "q4_0"), ("iq4_xs", "q4_0"), ("mxfp4", "mxfp4")]
