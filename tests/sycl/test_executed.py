"""The compiled kernels' own IR, run here, against the reference: the same bits."""

import numpy as np
import pytest
import reference
from device import (
    Buffer,
    Layout,
    codebook,
    columns_per_scale,
    kernel,
    matrix,
    product_range,
    tile_count,
    to_tiles,
)
from offline.variants import DEQUANTIZED, FORMATS, dequantize, product, product_half, rows, total

pytestmark = pytest.mark.usefixtures("offline")

PAIRS = [(g, d) for g in ("iq3_s", "iq3_xxs", "iq2_s") for d in ("iq4_nl", "q2_0")]
PAIRS += [(f, f) for f in ("q8_0", "q8_0_128", "q8_0_row")]


def same(a: np.ndarray, b: np.ndarray) -> bool:
    """The same bits; any NaN is as good as another."""
    return a.shape == b.shape and a.dtype == b.dtype and np.array_equal(a, b, equal_nan=True)


def multiply(format, mt, wg, k, n, counts, seed, descending=False, at_end=True):
    """Launches one product of experts with `counts` rows; returns what came out and what should."""
    rng = np.random.default_rng(seed)
    layout = Layout(counts)
    matrices = [matrix(format, n, k, rng, at_end) for _ in counts]
    x = rng.normal(0, 1, (sum(counts), k)).astype(np.float32)
    q, d = reference.quantize_rows(x, columns_per_scale(format, k))
    parts, expected, row = [], [], 0
    for m, count in zip(matrices, counts, strict=True):
        part = slice(row, row + count)
        parts.append(to_tiles(q[part], d[part]))
        expected.append(reference.product(q[part], d[part], m.codes, m.scale))
        row += count
    tiles = [np.concatenate([p[i] for p in parts]) for i in range(2)]
    jobs = layout.jobs([m.blob for m in matrices], mt)
    size, group = product_range(jobs, n, wg)
    # Outputs in an order of their own, with room beside them that nobody may write.
    slots = rng.permutation(len(x))
    out = Buffer(np.full((len(x), n + 16), 7, np.float32))
    arguments = [Buffer(jobs), Buffer(tiles[0]), Buffer(tiles[1]), codebook(format), out]
    kernel(product(format, mt, wg)).launch(
        size, group, *arguments, layout.by_position(slots), k, n, n + 16, descending=descending
    )
    assert (out.array[:, n:] == 7).all()
    return out.array[slots, :n], np.concatenate(expected)


@pytest.mark.parametrize("wg", [0, 1])
@pytest.mark.parametrize("mt", [2, 4, 8])
@pytest.mark.parametrize("format", FORMATS)
def test_every_variant_of_the_product(format, mt, wg):
    # 256 columns are one block: every other row is misaligned. 512: blocks alternate in a row. 3
    # panels leave a work-group threads without one. Tiles of experts are not full; one has no row.
    for i, (k, counts) in enumerate([(256, [11, 0, 70]), (512, [8, 1, 33])]):
        got, expected = multiply(format, mt, wg, k, 48, counts, 10 * mt + i, bool(i), not i)
        assert same(got, expected)


@pytest.mark.parametrize(
    ("format", "mt", "wg"), [("iq3_s", 8, 1), ("iq4_nl", 4, 1), ("q2_0", 2, 0)]
)
def test_every_number_of_rows(format, mt, wg):
    for count in range(1, 131):
        got, expected = multiply(format, mt, wg, 256, 16, [count], count, count % 2 == 0)
        assert same(got, expected), f"{count} rows"


@pytest.mark.parametrize("wg", [0, 1])
@pytest.mark.parametrize(
    ("format", "k"), [("iq4_nl", 32), ("iq4_nl", 416), ("q8_0_row", 96), ("q2_0", 64)]
)
def test_columns_that_fill_no_chunk_of_local_memory(format, k, wg):
    for mt in (2, 8):
        got, expected = multiply(format, mt, wg, k, 32, [9, 20], k)
        assert same(got, expected)


@pytest.mark.parametrize("wg", [0, 1])
@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_a_group_of_experts_through_its_four_launches(first, second, wg):
    k, n_ff, tokens, mt = 256, 384, 60, 4
    rng = np.random.default_rng(len(first) + 7 * wg)
    counts = [5, 0, 17, 1, 40]
    glu = ("swiglu", "geglu", "reglu")[PAIRS.index((first, second)) // 3]
    rotation = (0, 128, 64)[PAIRS.index((first, second)) % 3]
    layout = Layout(counts)
    gate, up = ([matrix(first, n_ff, k, rng) for _ in counts] for _ in range(2))
    down = [matrix(second, k, n_ff, rng) for _ in counts]
    x = rng.normal(0, 1, (tokens, k)).astype(np.float32)
    source = rng.integers(0, tokens, sum(counts))
    signs = [np.array([reference.sign(j, 5) for j in range(n)], np.float32) for n in (k, n_ff)]

    def tiles(glu, columns, x, source, format, signs):
        """octet_rows: int8 tiles and their scales."""
        group = columns_per_scale(format, columns)
        q = Buffer(np.zeros((layout.tiles, columns // 32, 8, 32), np.int8))
        d = Buffer(np.zeros((layout.tiles, columns // group, 8), np.float32))
        parts = 1 if group == columns else columns // 128
        kernel(rows(glu, 128, 0)).launch(
            *((8 * layout.tiles, parts), 1, x, source, Buffer(signs), q, d),
            *(columns, x.array.shape[1], group, rotation),
        )
        return q, d

    def times(matrices, format, n, columns, q, d, out, slot, at):
        """octet_product of the experts' matrices, [(column of the output, matrices)]."""
        blobs = [[m.blob for m in its] for its in matrices]
        jobs = np.concatenate([layout.jobs(b, mt, c) for b, c in zip(blobs, at, strict=True)])
        size, group = product_range(jobs, n, wg)
        kernel(product(format, mt, wg)).launch(
            *(size, group, Buffer(jobs), q, d, codebook(format), out, slot),
            *(columns, n, out.array.shape[1]),
        )

    q, d = tiles("none", k, Buffer(x), layout.by_position(source), first, signs[0])
    gu = Buffer(np.full((8 * layout.tiles, 2 * n_ff), np.nan, np.float32))
    times([gate, up], first, n_ff, k, q, d, gu, None, [0, n_ff])
    every = layout.by_position(layout.positions())
    q, d = tiles(glu, n_ff, gu, every, second, signs[1])
    out = Buffer(np.zeros((sum(counts), k), np.float32))
    times([down], second, k, n_ff, q, d, out, layout.by_position(np.arange(sum(counts))), [0])

    row = 0
    for e, count in enumerate(counts):
        if count == 0:
            continue
        turned = (rotation, 5) if rotation else None
        its = x[source[row : row + count]]
        g = reference.multiply(its, (gate[e].codes, gate[e].scale), turned)
        u = reference.multiply(its, (up[e].codes, up[e].scale), turned)
        h = reference.glu(glu, g, u)
        expected = reference.multiply(h, (down[e].codes, down[e].scale), turned)
        assert same(out.array[row : row + count], expected), f"expert {e}"
        row += count


@pytest.mark.parametrize("chunk", [32, 64, 128])
@pytest.mark.parametrize("glu", ["none", "swiglu", "geglu", "reglu"])
@pytest.mark.parametrize("half", [0, 1])
def test_rows(glu, chunk, half):
    columns = 3 * chunk
    width = columns if glu == "none" else 2 * columns
    rng = np.random.default_rng(chunk)
    x = rng.normal(0, 3, (12, width + 3)).astype(np.float32)
    x[1, :40] = 0
    x[2, 7], x[3, 5], x[4, 6] = np.nan, np.inf, -np.inf
    x[5] *= np.float32(1e-37)  # scales and quotients of subnormals
    x[6] *= 40
    # Quotients that are halves, and ones next to a half, where a rounded reciprocal goes wrong.
    halves = (rng.integers(-126, 126, (2, width)) + 0.5).astype(np.float32)
    for row, largest in ((7, np.float32(127 / 8)), (8, np.float32(9.37))):
        x[row, :width] = halves[row - 7] * (largest / np.float32(127))
        x[row, :width:32] = largest
    source = np.array([3, 11, 1, 2, 4, 5, -1, -1, 6, 7, 8, 9, 10, 0, -1, 6], np.int32)
    for rotation in [r for r in (0, 32, 64, 128) if r <= chunk]:
        for group in {32, columns} | ({128} if chunk == 128 else set()):
            v = x[source, :width] * (source >= 0)[:, None]
            v[source < 0] = 0
            with np.errstate(all="ignore"):
                if glu != "none":
                    v = reference.glu(glu, v[:, :columns], v[:, columns:])
                if rotation:
                    v = reference.rotate_rows(v, rotation, 9)
            signs = np.array([reference.sign(j, 9) for j in range(columns)], np.float32)
            kind, step = (np.float16, 16) if half else (np.int8, 32)
            q = Buffer(np.full((2, columns // step, 8, step), 99, kind))
            d = Buffer(np.full((2, columns // group, 8), 99, np.float32))
            parts = 1 if group == columns else columns // chunk
            kernel(rows(glu, chunk, half)).launch(
                *((16, parts), 1, Buffer(x), Buffer(source), Buffer(signs), q, d),
                *(columns, x.shape[1], group, rotation),
            )
            got = q.array.transpose(0, 2, 1, 3).reshape(16, columns)
            if half:
                with np.errstate(over="ignore"):
                    assert same(got, v.astype(np.float16))
            else:
                expected_q, expected_d = reference.quantize_rows(v, group)
                assert same(got, expected_q)
                assert same(d.array.transpose(0, 2, 1).reshape(16, -1), expected_d)


@pytest.mark.parametrize("format", DEQUANTIZED)
def test_dequantize(format):
    n, k = 48, 512
    rng = np.random.default_rng(4)
    matrices = [matrix(format, n, k, rng, at_end) for at_end in (True, False)]
    jobs = np.concatenate([Layout([8]).jobs([m.blob], 1, i) for i, m in enumerate(matrices)])
    half = Buffer(np.zeros((2, n // 16, k // 16, 8, 16, 2), np.float16))
    kernel(dequantize(format)).launch((2, n // 16), 1, Buffer(jobs), codebook(format), half, k, n)
    for got, m in zip(half.array, matrices, strict=True):
        with np.errstate(over="ignore"):
            weights = m.codes * np.repeat(m.scale, k // m.scale.shape[1], axis=1)
            assert same(got.transpose(0, 3, 1, 2, 4).reshape(n, k), weights.astype(np.float16))


@pytest.mark.parametrize("used", [1, 2, 5])
def test_sum(used):
    tokens, n = 3, 40
    rng = np.random.default_rng(used)
    y = rng.normal(0, 1, (tokens * used, n + 3)).astype(np.float32)
    weights = rng.random((tokens, used)).astype(np.float32)
    out = Buffer(np.full((tokens, n), np.nan, np.float32))
    arguments = (Buffer(y), Buffer(weights), out, used, n, n + 3)
    kernel(total()).launch((tokens, 48), 16, *arguments)
    parts = y[:, :n].reshape(tokens, used, n) * weights[..., None]
    expected = parts[:, 0]
    for i in range(1, used):
        expected = expected + parts[:, i]
    assert same(out.array, expected)


@pytest.mark.parametrize("mt", [2, 4, 8])
def test_float_products(mt):
    n, k, counts = 48, 272, [3, 0, 41]
    rng = np.random.default_rng(mt)
    layout = Layout(counts)
    weights = rng.normal(0, 0.02, (3, n, k)).astype(np.float16)
    x = rng.normal(0, 1, (sum(counts), k)).astype(np.float16)
    tiles, expected, bound, row = [], [], [], 0
    for w, count in zip(weights, counts, strict=True):
        its = x[row : row + count]
        padded = np.pad(its, ((0, -count % 8), (0, 0)))
        tiles.append(padded.reshape(tile_count(count), 8, k // 16, 16).transpose(0, 2, 1, 3))
        expected.append(its.astype(np.float64) @ w.astype(np.float64).T)
        bound.append(np.abs(its.astype(np.float64)) @ np.abs(w.astype(np.float64)).T)
        row += count
    panels = weights.reshape(3, n // 16, 16, k // 16, 8, 2).transpose(0, 1, 3, 4, 2, 5)
    blobs = [Buffer(p) for p in panels]
    jobs = layout.jobs(blobs, mt)
    out = Buffer(np.full((len(x), n), np.nan, np.float32))
    kernel(product_half(mt)).launch(
        *((len(jobs), n // 16), 1, Buffer(jobs), Buffer(np.concatenate(tiles)), out),
        *(layout.by_position(np.arange(len(x))), k, n, n),
    )
    # Products of two fp16 are exact in f32; k sums in any order err by at most k u / (1 - k u) of
    # the sum of magnitudes, u = 2^-24.
    u = 2.0**-24
    error = np.abs(out.array - np.concatenate(expected))
    assert (error <= k * u / (1 - k * u) * np.concatenate(bound)).all()
