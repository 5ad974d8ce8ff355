import gguf
import numpy as np
import pytest
from llama_octet.gguf_tools import ggml
from llama_octet.gguf_tools.errors import OctetError

# Types that gguf-py can decode and the runtime can quantize to in no time.
QUICK = [
    *("f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_K", "q3_K", "q4_K", "q5_K"),
    *("q6_K", "iq3_xxs", "iq3_s", "iq4_nl", "iq4_xs", "tq1_0", "tq2_0", "mxfp4"),
]
# Blocks that begin with their fp16 scale: any bytes behind it are a valid block.
CODEBOOKS = ["iq1_s", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "iq4_nl", "iq4_xs", "q8_0"]


def weights(rows=4, columns=512, seed=0):
    return np.random.default_rng(seed).standard_normal((rows, columns), np.float32) / 8


@pytest.mark.parametrize("name", CODEBOOKS)
def test_decoding_any_block_is_gguf_pys(name):
    kind = ggml.type_by_name(name)
    raw = np.random.default_rng(5).integers(0, 256, (64, kind.size), dtype=np.uint8)
    scales = np.float16(10.0 ** np.linspace(-7, 2, 64))  # from subnormal up
    raw[:, :2] = scales.view(np.uint8).reshape(64, 2)
    theirs = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[name.upper()])
    assert (ggml.to_float(kind, raw.tobytes(), kind.block) == theirs).all()


@pytest.mark.parametrize("name", QUICK)
def test_decoding_what_was_quantized_is_gguf_pys(name):
    kind = ggml.type_by_name(name)
    raw = ggml.quantize(kind, weights(), None)
    assert len(raw) == 4 * kind.row_bytes(512)
    ours = ggml.to_float(kind, raw, 512)
    theirs = np.frombuffer(raw, np.uint8).reshape(4, -1)
    theirs = gguf.quants.dequantize(theirs, gguf.GGMLQuantizationType[name.upper()])
    assert (ours == theirs).all()
    assert np.abs(ours - weights()).mean() < 0.1 * (6 if "1" in name or "2" in name else 1)


def test_q2_0_decodes_as_documented():
    kind = ggml.type_by_name("q2_0")
    rng = np.random.default_rng(1)
    raw = rng.integers(0, 256, (3, 18), dtype=np.uint8)
    raw[:, :2] = np.float16([[0.5], [1e-6], [2]]).view(np.uint8)
    codes = raw[:, 2:, None] >> np.array([0, 2, 4, 6], np.uint8) & 3
    wanted = (codes.reshape(3, 64).astype(np.float32) - 1) * [[0.5], [np.float16(1e-6)], [2]]
    assert (ggml.to_float(kind, raw.tobytes(), 64) == wanted).all()


def test_f32_passes_through():
    w = weights()
    assert (ggml.to_float(ggml.type_by_name("f32"), w.tobytes(), 512) == w).all()


def test_subnormal_scales_are_kept():
    for name, size in (("q8_0", 1e-3), ("iq4_nl", 1e-3), ("iq3_s", 1e-3)):
        kind, w = ggml.type_by_name(name), weights() * np.float32(size)
        raw = ggml.quantize(kind, w, None)
        scales = np.frombuffer(raw, np.uint8).reshape(-1, kind.size)[:, :2].copy().view(np.float16)
        assert 0 < np.abs(scales).max() < 2**-14, name
        assert np.corrcoef(ggml.to_float(kind, raw, 512).ravel(), w.ravel())[0, 1] > 0.7, name


def test_quantizing_row_by_row_changes_nothing():
    kind, w = ggml.type_by_name("iq3_xxs"), weights()
    together = ggml.quantize(kind, w, None)
    assert together == b"".join(ggml.quantize(kind, w[i : i + 1], None) for i in range(4))


@pytest.mark.parametrize("name", ["iq3_s", "iq3_xxs", "iq4_nl"])
def test_importance_makes_important_columns_better(name):
    kind, w = ggml.type_by_name(name), weights(16)
    importance = np.full(512, 0.01, np.float32)
    importance[::4] = 100

    def error(raw):
        return np.square(ggml.to_float(kind, raw, 512) - w)[:, ::4].mean()

    assert error(ggml.quantize(kind, w, importance)) < 0.9 * error(ggml.quantize(kind, w, None))


def test_types_that_need_importance_get_an_even_one():
    kind = ggml.type_by_name("iq2_xxs")
    assert ggml.needs_importance(kind)
    even = ggml.quantize(kind, weights(), np.ones(512))
    assert ggml.quantize(kind, weights(), None) == even


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e30, 65505])
@pytest.mark.parametrize("name", ["iq3_s", "q2_0", "q8_0"])
def test_what_the_runtime_would_choke_on_is_refused(name, bad):
    w = weights()
    w[2, 100] = bad
    with pytest.raises(ValueError, match="not finite or beyond"):
        ggml.quantize(ggml.type_by_name(name), w, None)


def test_wrong_sizes_are_refused():
    kind = ggml.type_by_name("iq3_s")
    with pytest.raises(ValueError, match="multiple of 256"):
        ggml.quantize(kind, weights(2, 288), None)
    with pytest.raises(ValueError, match="importance"):
        ggml.quantize(kind, weights(), np.ones(256))
    with pytest.raises(OctetError, match="cannot decode"):
        ggml.to_float(kind, bytes(100), 256)
    with pytest.raises(OctetError, match="cannot decode"):
        ggml.to_float(ggml.type_by_name("i32"), bytes(128), 32)


def test_unknown_types():
    assert ggml.type_by_id(4) is None
    assert ggml.type_by_id(-1) is None
    assert ggml.type_by_id(10**6) is None
    with pytest.raises(OctetError, match="'q9_9'"):
        ggml.type_by_name("q9_9")
