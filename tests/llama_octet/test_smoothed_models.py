"""Smoothing against the runtime: what it folds stays the same model, and what it is good for."""

import models
import numpy as np
import pytest
from llama_octet import smoothing
from llama_octet.commands import calibrate
from llama_octet.gguf_tools import convert, folds, plan
from llama_octet.gguf_tools.imatrix import Importance
from llama_octet.gguf_tools.reader import Model
from llama_octet.gguf_tools.rounding import Rounding
from llama_octet.gguf_tools.smoothing import (
    Magnitudes,
    Smoothing,
    Treatment,
    norm_smoothing,
    up_down_smoothing,
)
from llama_octet.measure import Yardstick
from octet_helpers import complaint

TEXT = "A small cake of oats and rye, 42 grams; more or less. The weather is fine.\n" * 8

MODELS = {
    "llama": lambda path: models.random_dense(path),
    "llama q8_0": lambda path: models.random_dense(path, kind="q8_0"),
    "gemma3": lambda path: models.random_dense(path, arch="gemma3"),
    "experts": lambda path: models.random_moe(path),
    "merged": lambda path: models.random_moe(path, merged=True, shared=True),
    "shared": lambda path: models.random_moe(path, shared=True),
}


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(TEXT)
    return path


def both(path, stats, alpha=0.5, **options) -> tuple[Smoothing, Smoothing]:
    """Both smoothings of a model, as `octet convert` with these options makes them."""
    steps = {s.tensor.name: s for s in convert.planned(path, **OPTIONS | options)}
    treatment = Treatment(lambda t: steps[t.name].rounded, lambda t: steps[t.name].rotation > 0)
    with Model(path) as model, Importance(stats) as importance:
        architecture = model.text("general.architecture")
        norms, pairs = (f(model, architecture)[0] for f in (folds.norm_folds, folds.up_down_folds))
        magnitudes = Magnitudes()
        return (
            norm_smoothing(norms, importance, alpha, treatment, magnitudes),
            up_down_smoothing(pairs, importance, treatment, magnitudes),
        )


OPTIONS = {"int8": "*", "rotate": "auto", "scale_group": "row", "experts": None}
OPTIONS |= {"rotate_experts": "0", "keep": None}


@pytest.mark.parametrize("kind", MODELS)
def test_a_smoothed_float_model_is_the_same_model(tmp_path, text, kind, cache, monkeypatch):
    monkeypatch.setenv("OCTET_CACHE_DIR", str(cache))
    path = MODELS[kind](tmp_path / "model.gguf")
    calibrate.measure(str(path), str(text), tmp_path / "stats.gguf", tokens=128)
    norms, pairs = both(path, tmp_path / "stats.gguf")
    joined = norms.joined(pairs)
    # Every layer has two norms, and one pair or, with shared experts, two.
    assert sum("_norm" in name for name in joined.columns) == 4
    assert len(joined.rows) == (4 if kind in ("merged", "shared") else 2)
    assert all(np.ptp(np.log2(s)) >= 1 for s in joined.columns.values())  # or nothing is tested

    plain = tmp_path / "plain.gguf"
    convert.write_float(path, plain, Smoothing(), joined)
    convert.write_float(path, tmp_path / "smoothed.gguf", joined.powers_of_two(), joined)
    convert.write_float(path, tmp_path / "exact.gguf", joined)
    # Without one of its readers a norm is folded wrongly. (Only the last: each takes a run.)
    name = next(n for n in reversed(joined.columns) if "ffn_gate_inp" in n or "attn_v" in n)
    wrong = Smoothing("wrong", None, dict(joined.columns), joined.rows)
    del wrong.columns[name]
    convert.write_float(path, tmp_path / "wrong.gguf", wrong, joined)
    with Yardstick(str(plain), str(text), 64, 2) as yardstick:
        assert yardstick.largest_difference(tmp_path / "smoothed.gguf") == 0
        # The last bits of F32, and what becomes of them in the F16 of the runtime's cache.
        # Products that stay quantized round their input to 8 bits: there it shows as more.
        if "q8_0" not in kind:
            assert yardstick.largest_difference(tmp_path / "exact.gguf") < smoothing.PROOF_LIMIT
        assert yardstick.largest_difference(tmp_path / "wrong.gguf") > smoothing.PROOF_LIMIT


@pytest.mark.parametrize("kind", ["gemma3", "experts"])
def test_gptq_knows_the_inputs_of_the_smoothed_model(tmp_path, text, kind, octet_json):
    """What it makes of the measured x·xᵀ is what a measurement of the smoothed model gives."""
    path = MODELS[kind](tmp_path / "model.gguf")
    calibrate.measure(str(path), str(text), tmp_path / "stats.gguf", tokens=128)
    norms, pairs = both(path, tmp_path / "stats.gguf")
    smoothing = norms.joined(pairs).powers_of_two()  # changes no bit of a float model
    measured = []
    for name, factors in (("plain", Smoothing()), ("smoothed", smoothing)):
        model, stats = tmp_path / f"{name}.gguf", tmp_path / f"{name}.stats"
        convert.write_float(path, model, factors, smoothing)
        octet_json("calibrate", model, text, "-o", stats, "--gram", "*", "--tokens", 256)
        measured.append(stats)
    with Model(path) as model, Importance(measured[0]) as given, Importance(measured[1]) as wanted:
        rounding = Rounding("gptq", given)
        kinds = (".attn_v.", ".ffn_gate", ".ffn_down")
        names = [name for name in smoothing.columns if any(kind in name for kind in kinds)]
        assert len(names) >= 6
        for name in names:
            tensor = model.tensors[name]
            step = plan.Step(tensor, "dense", "int8", smoothing=smoothing)
            for expert in range(tensor.shape[2] if len(tensor.shape) > 2 else 1):
                exact = wanted.gram(tensor, expert)
                assert np.array_equal(rounding._gram(step, expert), exact)
                assert not (exact.any() and np.array_equal(given.gram(tensor, expert), exact))


def test_outliers_in_norms_cost_little_with_smoothing(tmp_path, tiny_moe, monkeypatch, cache):
    """At least 90 % of what 4 channels 50 times as large cost comes back, with alpha 0.5."""
    monkeypatch.setenv("OCTET_CACHE_DIR", str(cache))
    text, stats = tmp_path / "text.txt", tmp_path / "stats.gguf"
    text.write_text(PROSE)
    planted = models.plant_outliers(tiny_moe, tmp_path / "planted.gguf")
    calibrate.measure(str(planted), str(text), stats, tokens=1024)

    def kl(source, rotate, smoothed=None):
        path = tmp_path / "out.gguf"
        convert.convert(source, path, smoothing=smoothed, rotate=rotate, force=True)
        return yardstick.kl(path)

    with Yardstick(str(tiny_moe), str(text), 256, 2) as yardstick:
        assert yardstick.largest_difference(planted) < 1e-2  # it is the same model, in float
        before, outliers = kl(tiny_moe, "0"), kl(planted, "0")
        assert outliers > 5 * before  # or there is nothing to bring back
        enough = outliers - 0.9 * (outliers - before)
        for rotate in ("0", "auto"):
            smoothed = kl(planted, rotate, both(planted, stats, rotate=rotate)[0])
            assert smoothed <= enough
        # Rotation alone brings back as much; smoothing halves what it leaves.
        rotated = kl(planted, "auto")
        assert 2 * smoothed < rotated <= enough


PROSE = (
    "The mount command attaches the file system found on some device to the big file tree. A "
    "module is a file containing definitions and statements. Within a module, its name is "
    "available as a global variable. Packages are a way of structuring a namespace. The handbook "
    "describes how to install the base system, how to keep it up to date, and what to do when a "
    "disk fails. An oak is a tree that bears acorns as fruit; a harbour is a place of refuge for "
    "ships. What light through yonder window breaks? It is the east, and the sun rises there. "
    "Returns the length of the sequence, the number of items in a container. If the argument is "
    "negative, an error is raised. Regular expressions can be concatenated to form new ones. In "
    "1804 the town had four thousand people, two mills and a school for boys.\n"
) * 4


def test_the_command_keeps_what_lowers_the_divergence(octet_json, tmp_path, text):
    source = models.random_dense(tmp_path / "model.gguf", layers=1)
    planted = models.plant_outliers(source, tmp_path / "planted.gguf")
    out = tmp_path / "out.gguf"
    options = ("--smooth", "auto", "--calibration", text, "--alpha", 0.5, "--rotate", 0)
    result = octet_json("convert", planted, out, *options)
    found = result["smoothing"]
    assert found["method"] in ("smoothquant", "smoothquant+updown")
    assert found["alpha"] == 0.5
    assert found["logit_difference"] <= smoothing.PROOF_LIMIT
    kls = [tried["kl"] for tried in found["tried"]]
    assert min(kls) < kls[0] / 2
    told = octet_json("inspect", out)["converted"]
    assert told["smoothing"] == found["method"]
    # It is in the weights: the file runs like any other.
    assert octet_json("run", out, "-p", "A small cake", "-n", 2)["tokens"]


def test_what_does_not_help_is_left_out(octet_json, tmp_path, text):
    """All channels alike, and as large in weights and activations: nothing to move."""
    source = models.random_dense(tmp_path / "model.gguf", layers=1)
    options = ("--smooth", "smoothquant", "--calibration", text, "--alpha", 1)
    smoothed, plain = tmp_path / "smoothed.gguf", tmp_path / "plain.gguf"
    result = octet_json("convert", source, smoothed, *options)
    found = result["smoothing"]
    before, after = (tried["kl"] for tried in found["tried"])
    assert after >= before
    assert found["method"] == "none"
    assert any("left out" in note for note in result["notes"])
    octet_json("convert", source, plain)
    assert smoothed.read_bytes() == plain.read_bytes()


def test_up_and_down_without_data(octet_json, tmp_path):
    source = models.random_moe(tmp_path / "model.gguf", layers=1)
    result = octet_json("convert", source, tmp_path / "out.gguf", "--smooth", "updown")
    assert result["smoothing"]["method"] == "updown"
    assert result["smoothing"]["tried"] == []
    assert result["smoothing"]["logit_difference"] <= smoothing.PROOF_LIMIT
    assert any("not measured" in note for note in result["notes"])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--smooth", "hard"), "--smooth hard"),
        (("--smooth", "auto"), "give --calibration"),
        (("--smooth", "smoothquant"), "give --calibration"),
        (("--smooth", "updown", "--alpha", "0.5"), "--alpha"),
        (("--alpha", "0.5"), "--alpha"),
        (("--calibration", "TEXT"), "--calibration"),
        (("--smooth", "auto", "--calibration", "TEXT", "--alpha", "1.5"), "--alpha 1.5"),
        (("--smooth", "auto", "--calibration", "TEXT", "--alpha", "nan"), "--alpha nan"),
        (("--smooth", "auto", "--calibration", "missing.txt"), "missing.txt: cannot be read"),
        (("--smooth", "smoothquant", "--calibration", "TEXT"), "starcoder2 is not known"),
    ],
)
def test_what_cannot_be_done(octet, tmp_path, text, options, said):
    source = models.random_dense(tmp_path / "model.gguf", layers=1)
    if "starcoder2" in said:
        raw = source.read_bytes()
        source.write_bytes(raw.replace(b"\x05\0\0\0\0\0\0\0llama", b"\x0a\0\0\0\0\0\0\0starcoder2"))
    arguments = [text if o == "TEXT" else o for o in options]
    done = octet("convert", source, tmp_path / "out.gguf", *arguments)
    assert said in complaint(done)
    assert not (tmp_path / "out.gguf").exists()


def test_a_fold_that_changes_the_model(octet, octet_json, tmp_path, text):
    """This architecture without shared experts adds what the norm puts out to its FFN's output."""
    source = models.random_moe(tmp_path / "model.gguf", layers=1, merged=True)
    out, options = tmp_path / "out.gguf", ("--calibration", text, "--alpha", 0.5)
    done = octet("convert", source, out, "--smooth", "smoothquant", *options)
    assert "changes the float model" in complaint(done)
    assert not out.exists()
    result = octet_json("convert", source, out, "--smooth", "auto", *options)
    assert any("changes the float model" in note for note in result["notes"])
    assert result["smoothing"]["method"] in ("none", "updown")
