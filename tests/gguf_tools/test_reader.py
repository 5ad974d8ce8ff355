import os
import random
import struct
import time

import models
import numpy as np
import pytest
from conftest import read
from llama_octet.gguf_tools import inspect, metadata, writer
from llama_octet.gguf_tools.convert import convert
from llama_octet.gguf_tools.errors import OctetError
from llama_octet.gguf_tools.reader import Model
from rawfile import Raw, i32s, string, strings, text, u32

F32, Q2_0 = 0, 42


def two_tensors() -> Raw:
    raw = Raw()
    raw.values["tokenizer.ggml.tokens"] = strings(["a", "b", "ä"])
    raw.add("a.weight", (32, 2), F32, np.arange(64, dtype=np.float32).tobytes())
    raw.add("b.weight", (32,), F32, np.arange(32, dtype=np.float32).tobytes())
    return raw


def refused(path, *words):
    """Opening `path` fails in one line that names the file and holds the words."""
    with pytest.raises(OctetError) as caught:
        Model(path)
    message = str(caught.value)
    assert "\n" not in message
    for word in (str(path), *words):
        assert word in message, message
    return message


def test_a_good_file_is_read(tmp_path):
    with Model(two_tensors().write(tmp_path / "m.gguf")) as model:
        assert model.text("general.architecture") == "llama"
        assert model.get("tokenizer.ggml.tokens") == ["a", "b", "ä"]
        a = model.tensors["a.weight"]
        assert (a.shape, a.columns, a.rows, a.type.name) == ((32, 2), 32, 2, "f32")
        assert (a.floats(1, 1) == np.arange(32, 64)).all()
        assert list(model.tensors) == ["a.weight", "b.weight"]


def test_every_kind_of_value_is_gguf_pys(dense):
    values, tensors = read(dense)
    with Model(dense) as model:
        assert list(model.values) == list(values)
        for key, (_, wanted) in values.items():
            found = model.get(key)
            assert (found.tolist() if isinstance(found, np.ndarray) else found) == wanted, key
        for name, tensor in tensors.items():
            mine = model.tensors[name]
            assert mine.shape == tuple(tensor.shape)
            assert mine.read(0, mine.rows) == tensor.data.tobytes()


def test_scalars_of_all_types(tmp_path):
    raw = two_tensors()
    cases = {
        **{"u8": (0, "B", 200), "i8": (1, "b", -100), "u16": (2, "H", 60000)},
        **{"i16": (3, "h", -30000), "i32": (5, "i", -(2**31)), "f32": (6, "f", 0.5)},
        **{"bool": (7, "?", True), "u64": (10, "Q", 2**63), "i64": (11, "q", -(2**63))},
        "f64": (12, "d", 0.1),
    }
    for key, (kind, code, value) in cases.items():
        raw.values[key] = struct.pack("<I" + code, kind, value)
        raw.values[key + "s"] = struct.pack("<IIQ" + 2 * code, 9, kind, 2, value, value)
    with Model(raw.write(tmp_path / "m.gguf")) as model:
        for key, (_, _, value) in cases.items():
            assert model.get(key) == value
            assert model.get(key + "s").tolist() == [value, value]


# ---- files that must be refused ----


def test_missing_directory_and_special_files(tmp_path):
    refused(tmp_path / "none.gguf", "No such file")
    refused(tmp_path, "directory")
    refused("/dev/null", "not a regular file")


@pytest.mark.parametrize("content", [b"", b"GGUF", b"PK\3\4" + bytes(100), b"\n" * 100])
def test_not_a_gguf_file(tmp_path, content):
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    refused(path, "GGUF file")


@pytest.mark.parametrize("version", [0, 1, 4, 999])
def test_other_versions(tmp_path, version):
    raw = two_tensors()
    raw.version = version
    refused(raw.write(tmp_path / "m.gguf"), "GGUF" if version else "endian")


def test_big_endian(tmp_path):
    raw = two_tensors()
    raw.version = 3 << 24
    refused(raw.write(tmp_path / "m.gguf"), "big-endian")


@pytest.mark.parametrize("field", ["tensor_count", "value_count"])
@pytest.mark.parametrize("count", [100, 10**6, 2**63, 2**64 - 1])
def test_absurd_counts(tmp_path, field, count):
    raw = two_tensors()
    setattr(raw, field, count)
    refused(raw.write(tmp_path / "m.gguf"))


@pytest.mark.parametrize("count", [10**9, 2**62, 2**64 - 1])
@pytest.mark.parametrize("kind", [0, 4, 8, 12])
def test_absurd_array_lengths(tmp_path, count, kind):
    raw = two_tensors()
    raw.values["x"] = struct.pack("<IIQ", 9, kind, count)
    refused(raw.write(tmp_path / "m.gguf"), "the value of x")


@pytest.mark.parametrize("value", [struct.pack("<IQ", 8, 2**63), struct.pack("<I", 77)])
def test_absurd_values(tmp_path, value):
    raw = two_tensors()
    raw.values["x"] = value
    refused(raw.write(tmp_path / "m.gguf"), "the value of x")


def test_nested_arrays(tmp_path):
    raw = two_tensors()
    raw.values["x"] = struct.pack("<IIQIQ", 9, 9, 1, 4, 0)
    refused(raw.write(tmp_path / "m.gguf"), "the value of x", "type 9")


def test_key_twice_and_key_that_is_not_text(tmp_path):
    raw = two_tensors()
    raw.values["x"] = u32(1) + text("x") + u32(2)
    raw.value_count = len(raw.values) + 1
    refused(raw.write(tmp_path / "m.gguf"), "x appears twice")
    raw = two_tensors()
    raw.values[b"\xff\xfe"] = u32(1)
    refused(raw.write(tmp_path / "m.gguf"), "UTF-8")


def test_tensor_past_the_end(tmp_path):
    raw = two_tensors()
    raw.tensors[1][4] = 1 << 20
    refused(raw.write(tmp_path / "m.gguf"), "b.weight", "ends at byte")


def test_tensor_cut_short(tmp_path):
    path = two_tensors().write(tmp_path / "m.gguf")
    path.write_bytes(path.read_bytes()[:-1])
    refused(path, "b.weight", "ends at byte")


def test_overlap(tmp_path):
    raw = two_tensors()
    raw.tensors[1][4] = 32
    refused(raw.write(tmp_path / "m.gguf"), "a.weight", "runs into b.weight")


def test_another_block_size_under_the_id_of_q2_0_is_not_read_as_this_one(tmp_path):
    raw = Raw()  # 34 bytes per 128 weights, where this runtime means 36
    raw.add("a.weight", (128, 16), Q2_0, bytes(34 * 16))
    raw.add("b.weight", (128, 16), Q2_0, bytes(34 * 16))
    refused(raw.write(tmp_path / "m.gguf"), "a.weight", "another block size")


def test_unaligned(tmp_path):
    raw = two_tensors()
    raw.tensors[1][4] = 260
    refused(raw.write(tmp_path / "m.gguf"), "b.weight", "alignment 32")


def test_name_twice(tmp_path):
    raw = two_tensors()
    raw.tensors[1][0] = "a.weight"
    refused(raw.write(tmp_path / "m.gguf"), "a.weight appears twice")


@pytest.mark.parametrize("shape", [(0,), (32, 0), (2**62, 2**62), (2**40, 3), (32,) * 5, (33, 2)])
@pytest.mark.parametrize("kind", [F32, 8])
def test_absurd_shapes(tmp_path, shape, kind):
    raw = Raw().add("a.weight", shape, kind, bytes(64))
    refused(raw.write(tmp_path / "m.gguf"), "a.weight")


@pytest.mark.parametrize("kind", [4, 31, 43, 2**31, 2**32 - 1])
def test_unknown_weight_types(tmp_path, kind):
    raw = Raw().add("a.weight", (32,), kind, bytes(128))
    refused(raw.write(tmp_path / "m.gguf"), "a.weight", "unknown weight type")


def test_terminal_tricks_in_names_are_not_printed(tmp_path):
    raw = Raw().add("a\x1b[2J.weight", (32,), 4, bytes(128))
    assert "\x1b" not in refused(raw.write(tmp_path / "m.gguf"))


@pytest.mark.parametrize("value", [u32(0), u32(48), string("32"), struct.pack("<IQ", 10, 32)])
def test_bad_alignment(tmp_path, value):
    raw = two_tensors()
    raw.values["general.alignment"] = value
    refused(raw.write(tmp_path / "m.gguf"), "general.alignment")


# ---- split files ----


def parts(folder, count=3, name="m"):
    """A model in `count` files, one tensor each; returns their paths."""
    paths = []
    for i in range(count):
        raw = Raw(
            {"split.no": struct.pack("<IH", 2, i), "split.count": struct.pack("<IH", 2, count)}
        )
        raw.values["split.tensors.count"] = struct.pack("<Ii", 5, count)
        if i == 0:
            raw.values["general.architecture"] = string("llama")
        raw.add(f"t{i}.weight", (32,), F32, np.full(32, i, np.float32).tobytes())
        paths.append(raw.write(folder / f"{name}-{i + 1:05}-of-{count:05}.gguf"))
    return paths


def test_split_model(tmp_path):
    with Model(parts(tmp_path)[0]) as model:
        assert list(model.tensors) == ["t0.weight", "t1.weight", "t2.weight"]
        assert [t.floats(0, 1)[0, 0] for t in model.tensors.values()] == [0, 1, 2]
        assert list(model.values) == ["general.architecture"]


def test_split_model_with_a_part_missing(tmp_path):
    paths = parts(tmp_path)
    paths[1].unlink()
    with pytest.raises(OctetError, match=r"m-00002-of-00003\.gguf: is missing"):
        Model(paths[0])


def test_split_model_from_its_second_part(tmp_path):
    refused(parts(tmp_path)[1], "not the first of 3", "m-00001-of-00003.gguf")


def test_stale_split_keys(tmp_path):
    path = parts(tmp_path)[0].rename(tmp_path / "joined.gguf")
    refused(path, "split.count", "joined.gguf")


def test_parts_of_different_models(tmp_path):
    paths = parts(tmp_path)
    parts(tmp_path, name="other")[0].rename(paths[1])
    with pytest.raises(OctetError, match=r"split\.no is 0, not 1"):
        Model(paths[0])


def test_a_tensor_in_two_parts(tmp_path):
    paths = parts(tmp_path)
    raw = paths[2].read_bytes().replace(b"t2.weight", b"t0.weight")
    paths[2].write_bytes(raw)
    with pytest.raises(OctetError, match=r"t0\.weight is also in"):
        Model(paths[0])


def test_parts_with_another_total(tmp_path):
    paths = parts(tmp_path)
    raw = paths[0].read_bytes()
    key = b"split.tensors.count" + struct.pack("<I", 5)
    assert key in raw
    paths[0].write_bytes(raw.replace(key + struct.pack("<i", 3), key + struct.pack("<i", 4)))
    with pytest.raises(OctetError, match=r"split\.tensors\.count is 4"):
        Model(paths[0])


def test_a_model_in_one_part_needs_no_special_name(tmp_path):
    path = parts(tmp_path, count=1)[0].rename(tmp_path / "x.gguf")
    with Model(path) as model:
        assert list(model.tensors) == ["t0.weight"]


# ---- damage anywhere ----


def small_converted(path):
    raw = Raw({"general.architecture": string("octet")})
    raw.add("blk.0.attn_q.weight", (32, 2), 8, bytes(68))
    raw.add("output_norm.weight", (32,), F32, bytes(128))
    octet = metadata.Octet("llama", {"blk.0.attn_q.weight": (32, 0)}, source_sha256="0" * 64)
    for entry in octet.entries():
        length = struct.unpack_from("<Q", entry)[0]
        raw.values[entry[8 : 8 + length].decode()] = entry[8 + length :]
    raw.values["tokenizer.ggml.tokens"] = strings(["a", "bc", ""])
    raw.values["tokenizer.ggml.token_type"] = i32s([1, 2, 3])
    return raw.write(path)


def test_damage_ends_in_one_line_or_does_not_matter(tmp_path):
    path = small_converted(tmp_path / "good.gguf")
    good = path.read_bytes()
    assert inspect.inspect(path)["tensors"][0]["rotation"] == 32
    chance = random.Random(1)
    outcomes = {"opened": 0, "refused": 0}
    started = time.monotonic()
    for number in range(600):
        damaged = bytearray(good)
        if number % 3 == 0:
            del damaged[chance.randrange(len(good)) :]
        else:
            for _ in range(chance.choice((1, 1, 4))):
                at = chance.randrange(len(good) if number % 2 else 200)
                damaged[at] = chance.choice((0, 255, damaged[at] ^ 1 << chance.randrange(8)))
        path.write_bytes(damaged)
        try:
            inspect.render(inspect.inspect(path))
            outcomes["opened"] += 1
        except OctetError as error:
            assert "\n" not in str(error)
            assert str(path) in str(error)
            outcomes["refused"] += 1
    assert time.monotonic() - started < 30
    assert outcomes["refused"] > 200, outcomes
    assert outcomes["opened"] > 20, outcomes  # else the loop tests nothing but the magic


def test_damage_before_converting(tmp_path):
    raw = Raw()
    raw.values["general.file_type"] = u32(1)
    raw.add("blk.0.attn_q.weight", (64, 4), 1, np.ones(256, np.float16).tobytes())
    raw.add("blk.0.ffn_down_exps.weight", (32, 2, 2), F32, np.ones(128, np.float32).tobytes())
    path, out = tmp_path / "in.gguf", tmp_path / "out.gguf"
    good, chance, refusals = raw.bytes(), random.Random(2), 0
    for _ in range(300):
        damaged = bytearray(good)
        for _ in range(chance.choice((1, 3))):
            at = chance.randrange(len(good))
            damaged[at] = chance.choice((0, 255, damaged[at] ^ 1 << chance.randrange(8)))
        path.write_bytes(damaged)
        try:
            convert(path, out, force=True, experts=chance.choice((None, "iq4_nl:iq4_nl")))
            inspect.inspect(out)
        except OctetError as error:
            assert "\n" not in str(error)
            refusals += 1
        assert set(os.listdir(tmp_path)) <= {"in.gguf", "out.gguf"}
    assert 100 < refusals < 290


def test_every_truncation_is_noticed(tmp_path):
    path = small_converted(tmp_path / "good.gguf")
    good = path.read_bytes()
    for size in range(0, len(good), 7):
        path.write_bytes(good[:size])
        refused(path)


def test_a_file_that_shrinks_while_it_is_read(tmp_path):
    path = two_tensors().write(tmp_path / "m.gguf")
    with Model(path) as model:
        path.write_bytes(b"GGUF")
        with pytest.raises(OctetError, match="became shorter"):
            model.tensors["a.weight"].read(0, 2)


def test_written_headers_are_read_by_gguf_py(tmp_path):
    entries = [
        writer.string("general.architecture", "llama"),
        writer.strings("s", ["x", "", "ü"]),
        writer.i32s("i", [1, -2]),
        writer.u32("u", 7),
    ]
    path = tmp_path / "m.gguf"
    data = np.arange(32, dtype=np.float32).tobytes()
    head = writer.header(entries, [("t", (8, 1), F32, 32), ("u", (16, 2), F32, 128)])
    assert len(head) % 32 == 0
    path.write_bytes(head + data[:32] + data)
    values, tensors = read(path)
    assert values["s"][1] == ["x", "", "ü"]
    assert values["i"][1] == [1, -2]
    assert values["u"][1] == 7
    assert tensors["t"].data.tobytes() == data[:32]
    assert tensors["u"].data.tobytes() == data
    assert list(tensors["u"].shape) == [16, 2]


def test_random_models_load_as_models(moe):
    assert models.TINY_MOE.name == "tiny-moe-f16.gguf"
    with Model(moe) as model:
        assert model.text("general.architecture") == "qwen3moe"
