"""What convert makes of an importance matrix: which basis, which rows, which method."""

import models
import numpy as np
import pytest
from llama_octet.gguf_tools import experts, ggml, gptq, imatrix, int8, metadata, plan, rotation
from llama_octet.gguf_tools.convert import convert
from llama_octet.gguf_tools.errors import UsageError
from llama_octet.gguf_tools.reader import Model
from llama_octet.gguf_tools.rounding import Rounding
from llama_octet.gguf_tools.smoothing import Smoothing

DOWN, Q = "blk.0.ffn_down_exps.weight", "blk.0.attn_q.weight"
SEED = 3


def statistics(path, source, *, gram):
    """An importance matrix of inputs that are correlated and different for each expert."""
    rng = np.random.default_rng(8)
    contents = imatrix.Contents(["made up"], 1, 512, 128, SEED)
    with Model(source) as model:
        for name in (DOWN, Q):
            tensor = model.tensors[name]
            count = tensor.shape[2] if len(tensor.shape) > 2 else 1
            k = tensor.columns
            mix = rng.standard_normal((count, k // 4, k))
            x = rng.standard_normal((count, 3 * k, k // 4)) @ mix
            x += 0.2 * rng.standard_normal(x.shape)
            x[:, :, ::7] *= 8
            turned = np.stack([rotation.rotate(one, 128, SEED) for one in x])
            contents.products[name] = imatrix.Statistics(
                counts=np.full(count, x.shape[1], float),
                sum2=(x**2).sum(axis=1),
                largest=np.abs(x).max(axis=1),
                rotated_sum2=(turned**2).sum(axis=1),
                rotated_largest=np.abs(turned).max(axis=1),
            )
            contents.input_of[name] = name
            if gram:
                contents.grams[name] = np.einsum("eti,etj->eij", x, x).astype(np.float32)
    imatrix.write(path, contents)
    return path


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return models.random_moe(tmp_path_factory.mktemp("rounding") / "moe.gguf", experts=2, layers=1)


@pytest.fixture(scope="module")
def known(tmp_path_factory, source):
    return statistics(tmp_path_factory.mktemp("known") / "s.gguf", source, gram=True)


def rows_of(path, name, expert=0):
    with Model(path) as model:
        tensor = model.tensors[name]
        return tensor.read(expert * tensor.shape[1], tensor.shape[1])


def floats_of(path, name, expert=0):
    with Model(path) as model:
        tensor = model.tensors[name]
        return tensor.floats(expert * tensor.shape[1], tensor.shape[1]), tensor


@pytest.mark.parametrize("pair", ["iq3_s:iq3_s", "iq4_nl:q2_0"])
def test_rotated_experts_are_weighed_in_the_rotated_basis(tmp_path, source, known, pair):
    out = tmp_path / "out.gguf"
    options = dict(int8="none", experts=pair, imatrix=known, seed=SEED)
    convert(source, out, rotate_experts="auto", **options)
    with Model(out) as model:
        octet = metadata.read(model)
        kind = model.tensors[DOWN].type
    assert octet.tensors[DOWN] == (128, 32)
    assert octet.rotated and octet.base_architecture == "qwen3moe"
    for expert in (0, 1):
        weights, tensor = floats_of(source, DOWN, expert)
        with imatrix.Importance(known) as importance:
            squares = importance.statistics(tensor).rotated_sum2[expert] / 768
        wanted = experts.quantize(
            *(kind, rotation.rotate(weights, 128, SEED).astype(np.float32)),
            *(squares.astype(np.float32)[None], 0),
        )
        assert rows_of(out, DOWN, expert) == wanted


@pytest.mark.parametrize("rotate", ["128", "0"])
def test_gptq_uses_each_experts_gram_matrix_in_its_basis(tmp_path, source, known, rotate):
    out, block = tmp_path / "out.gguf", int(rotate)
    options = dict(imatrix=known, rounding="gptq", seed=SEED)
    result = convert(
        *(source, out),
        **options,
        rotate=rotate,
        experts="iq3_s:iq4_nl",
        rotate_experts=rotate,
    )
    told = [note for note in result["notes"] if "not in the importance matrix" in note]
    assert any("attn_k" in note for note in told) and not any(Q in note for note in told)
    with imatrix.Importance(known) as importance:
        for name, expert in ((Q, 0), (DOWN, 0), (DOWN, 1)):
            weights, tensor = floats_of(source, name, expert)
            gram = importance.gram(tensor, expert)
            weights = rotation.rotate(weights, block, SEED)
            if block:
                gram = rotation.rotate(rotation.rotate(gram, block, SEED).T, block, SEED)
            with Model(out) as model:
                back = model.tensors[name].floats(expert * tensor.shape[1], tensor.shape[1])
                kind = model.tensors[name].type
            if name == Q:
                nearest, d = int8.quantize(weights, 0)
                nearest = nearest * d.astype(float)
            else:
                raw = experts.quantize(
                    kind, weights.astype(np.float32), np.diagonal(gram).astype(np.float32)[None], 0
                )
                raw = np.frombuffer(raw, np.uint8)
                nearest = ggml.to_float(kind, raw, tensor.columns)
            ours, plain = (np.trace(e @ gram @ e.T) for e in (back - weights, nearest - weights))
            assert ours < 0.7 * plain, name


def test_a_smoothed_input_is_the_measured_one_divided(source, known):
    with Model(source) as model, imatrix.Importance(known) as importance:
        tensor = model.tensors[DOWN]
        factors = np.random.default_rng(1).choice([0.5, 1, 4], (2, tensor.columns))
        smoothing = Smoothing("updown", columns={DOWN: factors})
        step = plan.Step(tensor, "down", "iq4_nl", 128, 32, smoothing=smoothing)
        rounding = Rounding("gptq", importance, SEED)
        raw = importance.gram(tensor, 1) / np.outer(factors[1], factors[1])
        wanted = rotation.rotate(rotation.rotate(raw, 128, SEED).T, 128, SEED)
        assert np.allclose(rounding._gram(step, 1), wanted, rtol=1e-9, atol=1e-9 * wanted.max())
        u = gptq.factor(wanted)
        weights = tensor.floats(tensor.shape[1], 8) * factors[1]
        back = rounding.rows(step, weights, 1)
        assert back == gptq.round_codebook(step.type, rotation.rotate(weights, 128, SEED), u)


def test_a_norm_that_is_only_scaled_is_not_said_to_be_rounded(tmp_path, source, known):
    smoothing = Smoothing("smoothquant", 0.5, {"blk.0.attn_norm.weight": np.full((1, 256), 0.5)})
    options = dict(imatrix=known, rounding="gptq", seed=SEED, smoothing=smoothing)
    result = convert(source, tmp_path / "out.gguf", **options)
    assert not any("norm" in note for note in result["notes"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rounding": "up"}, "--round up"),
        ({"rounding": "gptq"}, "--gram"),
        ({"rotate_experts": "256", "experts": "iq3_s:iq4_nl"}, "--rotate-experts 256"),
        ({"imatrix": "x"}, "--imatrix: is only used"),
    ],
)
def test_options_that_make_no_sense(tmp_path, source, options, words):
    with pytest.raises(UsageError, match=words):
        convert(source, tmp_path / "out.gguf", **options)
    assert not any(tmp_path.iterdir())


def test_no_gram_matrix_is_told_and_rounded_to_the_nearest(tmp_path, source):
    thin = statistics(tmp_path / "s.gguf", source, gram=False)
    result = convert(source, tmp_path / "a.gguf", imatrix=thin, rounding="gptq", seed=SEED)
    assert any(Q in n and "to the nearest" in n for n in result["notes"])
    convert(source, tmp_path / "b.gguf", seed=SEED)
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()
