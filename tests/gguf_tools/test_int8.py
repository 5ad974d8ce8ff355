import gguf
import numpy as np
import pytest
import reference
from llama_octet.gguf_tools import int8


def rows_of_all_kinds(columns: int) -> np.ndarray:
    """f64 rows: ordinary, zero, subnormal scale, below any scale, huge, one big value."""
    rng = np.random.default_rng(columns)
    rows = rng.standard_normal((7, columns))
    rows[1] = 0
    rows[2] *= 1e-5  # d is a subnormal fp16
    rows[3] *= 1e-9  # d rounds to zero
    rows[4] *= 1e6
    rows[5, 3] = 1000
    rows[6, : columns // 2] = 0
    return rows


@pytest.mark.parametrize(("columns", "group"), [(32, 0), (640, 0), (128, 128), (640, 128)])
def test_quantize_is_the_references(columns, group):
    rows = rows_of_all_kinds(columns)
    q, d = int8.quantize(rows, group)
    assert q.dtype == np.int8
    assert d.dtype == np.float16
    for i, row in enumerate(rows):
        wanted_q, wanted_d = reference.quantize_row(row, group)
        assert (q[i] == wanted_q).all(), i
        assert (d[i] == wanted_d).all(), i


def test_halves_go_away_from_zero_and_nothing_else_does():
    row = np.zeros((1, 32))
    row[0, :9] = 127, 0.5, -0.5, 1.5, -2.5, 0.49999999999999994, -0.49999999999999994, 126.5, 3.4
    q, d = int8.quantize(row, 0)
    assert d[0, 0] == 1
    assert q[0, :9].tolist() == [127, 1, -1, 2, -3, 0, 0, 127, 3]


def test_scale_is_rounded_once():
    # Through f32 first, this scale would be a tie and round down to 1.
    row = np.zeros((1, 32))
    row[0, 0] = 127 * (1 + 2**-11 + 2**-35)
    assert float(np.float32(row[0, 0] / 127)) == 1 + 2**-11
    assert int8.quantize(row, 0)[1][0, 0] == 1 + 2**-10


def test_values_stay_within_127_when_the_scale_was_rounded_down():
    row = np.full((1, 32), 127 * 2**-24 * 1.49)  # the smallest fp16 is 2**-24
    q, d = int8.quantize(row, 0)
    assert d[0, 0] == np.float16(2**-24)
    assert (q == 127).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 127 * 65504 * 1.0001])
def test_what_no_scale_can_hold_is_refused(bad):
    row = np.zeros((2, 64))
    row[1, 5] = bad
    with pytest.raises(ValueError, match="not finite or beyond"):
        int8.quantize(row, 0)


def test_largest_scale_is_accepted():
    row = np.full((1, 32), 127 * 65504.0)
    q, d = int8.quantize(row, 0)
    assert d[0, 0] == 65504
    assert (q == 127).all()


@pytest.mark.parametrize("group", [0, 128])
def test_pack_makes_q8_0_blocks_with_one_scale_per_range(group):
    rows = rows_of_all_kinds(384)
    q, d = int8.quantize(rows, group)
    raw = int8.pack(q, d)
    assert raw == b"".join(reference.pack_q8_0(q[i], d[i]) for i in range(len(rows)))
    blocks = np.frombuffer(raw, np.uint8).reshape(len(rows), -1)
    decoded = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType.Q8_0)
    scale = np.repeat(d.astype(np.float32), 384 // d.shape[1], axis=1)
    assert (decoded == scale * q).all()
