"""`octet calibrate`, against activations computed here from a model simple enough for that.

Where attention and experts put out nothing, the input of every norm is the embedding of the token,
and the byte-level vocabulary makes tokens of bytes.
"""

import gguf
import models
import numpy as np
import pytest
from llama_octet.gguf_tools import rotation
from llama_octet.gguf_tools.imatrix import Importance
from llama_octet.gguf_tools.reader import Model
from octet_helpers import complaint

TEXT = "a rat sat or ate oats; a star rose at ease.\n" * 5  # no "th", which is a token


def silence(path, *names):
    """Set weights of a model to zero."""
    reader = gguf.GGUFReader(str(path), "r+")
    for tensor in reader.tensors:
        if tensor.name in names:
            tensor.data[...] = 0
    reader.data.flush()
    return path


def normed(model, norm, text):
    """What a norm makes of the embeddings of a text."""
    ids = list(text.encode())
    tensors = model.tensors
    x = tensors["token_embd.weight"].floats(0, 288)[ids].astype(np.float64)
    gain = tensors[norm].floats(0, 1)[0]
    return x / np.sqrt((x**2).mean(axis=1, keepdims=True) + 1e-6) * gain


def close(found, wanted):
    """Equal but for rounding in f32; a rotated value is a sum of larger ones."""
    assert np.allclose(found, wanted, rtol=1e-5, atol=1e-6 * np.abs(wanted).max())


def check(stats, weight, x, parts):
    """Statistics of `weight` against the rows that each expert read."""
    found = stats.statistics(weight)
    block = rotation.block_for(weight.columns, stats.block)
    turned = rotation.rotate(x, block, stats.seed)
    for expert, rows in enumerate(parts):
        assert found.counts[expert] == len(rows)
        if len(rows):
            for values, sum2, largest in (
                (x, found.sum2, found.largest),
                (turned, found.rotated_sum2, found.rotated_largest),
            ):
                close(sum2[expert], (values[rows] ** 2).sum(0))
                close(largest[expert], np.abs(values[rows]).max(0))
        else:
            assert not found.sum2[expert].any()


@pytest.fixture(scope="module")
def silent_moe(tmp_path_factory):
    path = tmp_path_factory.mktemp("moe") / "moe.gguf"
    # F32, since the runtime rounds the other side of a product to F16 if this is F16.
    models.random_moe(path, layers=1, experts=16, kind="f32")
    return silence(path, "blk.0.attn_output.weight", "blk.0.ffn_down_exps.weight")


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(TEXT)
    return path


def test_experts_norms_and_head(octet_json, silent_moe, text, tmp_path):
    """In several batches, of which all but the first leave the output head out."""
    out = tmp_path / "stats.gguf"
    options = ("--chunk", 64, "--seed", 9, "--rotate", 64, "--gram", "*gate_exps*,*attn_q*")
    result = octet_json("calibrate", silent_moe, text, "-o", out, *options)
    assert (result["tokens"], result["chunks"]) == (len(TEXT), -(-len(TEXT) // 64))
    assert result["products"] == 9
    with Model(silent_moe) as model, Importance(out) as stats:
        assert (stats.block, stats.seed) == (64, 9)
        everything = [np.arange(len(TEXT))]
        x = normed(model, "blk.0.attn_norm.weight", TEXT)
        for name in ("attn_q", "attn_k", "attn_v"):
            check(stats, model.tensors[f"blk.0.{name}.weight"], x, everything)
        assert stats.input_of("blk.0.attn_v.weight") == "blk.0.attn_q.weight"
        gram = stats.gram(model.tensors["blk.0.attn_v.weight"])
        assert np.allclose(gram, x.T @ x / len(x), rtol=1e-4, atol=1e-5)

        x = normed(model, "blk.0.ffn_norm.weight", TEXT)
        router = model.tensors["blk.0.ffn_gate_inp.weight"]
        check(stats, router, x, everything)
        chosen = np.argsort(-(x @ router.floats(0, 16).T), axis=1)[:, :2]
        parts = [np.flatnonzero((chosen == expert).any(axis=1)) for expert in range(16)]
        for name in ("gate", "up"):
            check(stats, model.tensors[f"blk.0.ffn_{name}_exps.weight"], x, parts)
        unseen = [expert for expert in range(16) if not len(parts[expert])]
        assert unseen  # or the text is too long to test it
        assert result["unseen"]["blk.0.ffn_gate_exps.weight"] == unseen
        gate = model.tensors["blk.0.ffn_gate_exps.weight"]
        expert = int(np.argmax([len(rows) for rows in parts]))
        own = x[parts[expert]]
        wanted = own.T @ own / len(own)
        assert np.allclose(stats.gram(gate, expert), wanted, rtol=1e-4, atol=1e-4)

        check_down(model, stats, x, parts)
        check(stats, model.tensors["output.weight"], normed(model, NORM, TEXT), everything)


NORM = "output_norm.weight"


def check_down(model, stats, x, parts):
    """The input of the down projections: every slot of a token is another row."""
    down = model.tensors["blk.0.ffn_down_exps.weight"]
    found = stats.statistics(down)
    for expert, rows in enumerate(parts):
        gate, up = (
            model.tensors[f"blk.0.ffn_{name}_exps.weight"].floats(256 * expert, 256)
            for name in ("gate", "up")
        )
        g, u = x[rows] @ gate.T, x[rows] @ up.T
        h = g / (1 + np.exp(-g)) * u
        assert found.counts[expert] == len(rows)
        assert np.allclose(found.sum2[expert], (h**2).sum(0), rtol=1e-3, atol=1e-4)


def test_a_tied_head_and_a_file_with_rotated_weights(octet_json, convert, text, tmp_path):
    source = models.random_dense(tmp_path / "tied.gguf", arch="gemma3", layers=1)
    converted = convert(source)
    stats = {}
    for path in (source, converted):
        out = tmp_path / f"{path.stem}.stats"
        result = octet_json("calibrate", path, text, "-o", out, "--chunk", 64)
        assert result["products"] == 8
        with Model(path) as model, Importance(out) as importance:
            stats[path] = [
                importance.statistics(model.tensors[name]).sum2
                for name in ("blk.0.attn_q.weight", "blk.0.ffn_down.weight", "token_embd.weight")
            ]
    first, *others = zip(*stats.values(), strict=True)
    # Rotated or not, a product is measured by the x that the graph has: the same before anything
    # was rounded, nearly the same behind int8 products.
    assert np.allclose(*first, rtol=1e-5)
    for plain, rotated in others:
        assert 0 < np.linalg.norm(plain - rotated) / np.linalg.norm(plain) < 0.1


def test_the_result_serves_convert(octet_json, silent_moe, text, tmp_path):
    out, moe = tmp_path / "stats.gguf", tmp_path / "out.gguf"
    octet_json("calibrate", silent_moe, text, "-o", out)
    result = octet_json("convert", silent_moe, moe, "--experts", "iq3_s:q8_0", "--imatrix", out)
    assert any("no importance for expert" in note for note in result["notes"])
    plain = tmp_path / "plain.gguf"
    octet_json("convert", silent_moe, plain, "--experts", "iq3_s:q8_0")
    name = "blk.0.ffn_gate_exps.weight"
    with Model(moe) as one, Model(plain) as other:
        assert one.tensors[name].read(0, 1) != other.tensors[name].read(0, 1)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("missing.gguf", "TEXT", "-o", "OUT"), "missing.gguf"),
        (("MODEL", "missing.txt", "-o", "OUT"), "missing.txt: cannot be read"),
        (("MODEL", "EMPTY", "-o", "OUT"), "is empty"),
        (("MODEL", "TEXT", "-o", "TEXT"), "is the input itself"),
        (("MODEL", "TEXT", "-o", "MODEL"), "is the input itself"),
        (("MODEL", "TEXT", "-o", "EMPTY"), "give --force"),
        (("MODEL", "TEXT", "-o", "OUT", "--gram", "*.bias"), "--gram *.bias"),
        (("MODEL", "TEXT", "-o", "OUT", "--rotate", "48"), "--rotate 48"),
        (("MODEL", "TEXT", "-o", "OUT", "--seed", "65536"), "--seed 65536"),
        (("MODEL", "TEXT", "-o", "OUT", "--tokens", "0"), "--tokens"),
        (("NAN", "TEXT", "-o", "OUT"), "blk.0.attn_q.weight"),
    ],
)
def test_what_cannot_be_done(octet, silent_moe, text, tmp_path, arguments, said):
    (tmp_path / "empty.txt").touch()
    places = {"MODEL": silent_moe, "TEXT": text, "EMPTY": tmp_path / "empty.txt"}
    places["OUT"] = tmp_path / "out.gguf"
    if "NAN" in arguments:
        places["NAN"] = models.random_dense(tmp_path / "nan.gguf", layers=1)
        reader = gguf.GGUFReader(str(places["NAN"]), "r+")
        norm = next(t for t in reader.tensors if t.name == "blk.0.attn_norm.weight")
        norm.data[3] = np.nan
        reader.data.flush()
    before = text.read_bytes()
    assert said in complaint(octet("calibrate", *(places.get(a, a) for a in arguments)))
    assert not places["OUT"].exists()
    assert not list(tmp_path.glob("*.part"))
    assert text.read_bytes() == before
