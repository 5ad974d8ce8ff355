import struct

import pytest
from llama_octet.gguf_tools import metadata
from llama_octet.gguf_tools.errors import OctetError
from llama_octet.gguf_tools.reader import Model
from rawfile import Raw, i32s, string, strings, u32

Q8_0, F16 = 8, 1


def converted(**changes) -> Raw:
    """A file with two octet tensors; `changes` replace keys (dots as __), None removes one."""
    raw = Raw({"general.architecture": string("octet")})
    raw.values |= {
        "octet.version": u32(1),
        "octet.base_architecture": string("qwen3moe"),
        "octet.tensors": strings(["a.weight", "b.weight"]),
        "octet.tensors.rotation": i32s([128, 0]),
        "octet.tensors.scale_group": i32s([0, 128]),
        "octet.rotation.axis": string("input"),
        "octet.rotation.hash": string("mix16"),
        "octet.rotation.seed": u32(7),
        "octet.smoothing": string("none"),
        "octet.source.sha256": string("0" * 64),
        "octet.tool": string("llama-octet 0.1.0"),
    }
    for key, value in changes.items():
        key = key.replace("__", ".")
        if value is None:
            del raw.values[key]
        else:
            raw.values[key] = value
    raw.add("a.weight", (384, 2), Q8_0, bytes(2 * 12 * 34))
    raw.add("b.weight", (128, 2), Q8_0, bytes(2 * 4 * 34))
    raw.add("c.weight", (128, 2), F16, bytes(2 * 128 * 2))
    return raw


def read(raw, tmp_path):
    with Model(raw.write(tmp_path / "m.gguf")) as model:
        return metadata.read(model)


def test_reads_what_is_there(tmp_path):
    octet = read(converted(), tmp_path)
    assert octet == metadata.Octet(
        base_architecture="qwen3moe",
        tensors={"a.weight": (128, 0), "b.weight": (0, 128)},
        seed=7,
        smoothing="none",
        source_sha256="0" * 64,
        tool="llama-octet 0.1.0",
    )
    assert octet.rotated


def test_entries_are_read_back(tmp_path):
    octet = metadata.Octet(
        *("llama", {"a.weight": (64, 128), "b.weight": (32, 0)}, 65535),
        *("smoothquant+updown", "x", "tool", 0.5),
    )
    raw = Raw({"general.architecture": string("octet")}, converted().tensors)
    for entry in octet.entries():
        length = struct.unpack_from("<Q", entry)[0]
        raw.values[entry[8 : 8 + length].decode()] = entry[8 + length :]
    assert read(raw, tmp_path) == octet


def test_no_tensors_at_all(tmp_path):
    octet = metadata.Octet("llama")
    raw = Raw()
    for entry in octet.entries():
        length = struct.unpack_from("<Q", entry)[0]
        raw.values[entry[8 : 8 + length].decode()] = entry[8 + length :]
    assert read(raw, tmp_path) == octet


def test_a_file_of_someone_else_is_none(tmp_path):
    assert read(Raw(), tmp_path) is None


def test_unguarded_without_rotation(tmp_path):
    raw = converted(general__architecture=string("qwen3moe"), octet__tensors__rotation=i32s([0, 0]))
    assert not read(raw, tmp_path).rotated


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        ("octet.version is 2", {"octet__version": u32(2)}),
        ("octet.version is 0", {"octet__version": u32(0)}),
        ("octet.version", {"octet__version": string("1")}),
        ("octet.version", {"octet__version": None}),
        ("octet.base_architecture", {"octet__base_architecture": None}),
        ("octet.base_architecture", {"octet__base_architecture": string("")}),
        ("octet.base_architecture", {"octet__base_architecture": string("octet")}),
        ("octet.tensors.rotation is '1 items'", {"octet__tensors__rotation": i32s([128])}),
        ("octet.tensors.scale_group", {"octet__tensors__scale_group": i32s([0, 0, 0])}),
        ("octet.tensors.rotation is 256", {"octet__tensors__rotation": i32s([256, 0])}),
        ("octet.tensors.rotation is -1", {"octet__tensors__rotation": i32s([-1, 0])}),
        ("octet.tensors.rotation is 16", {"octet__tensors__rotation": i32s([16, 0])}),
        ("octet.tensors.rotation", {"octet__tensors__rotation": strings(["128", "0"])}),
        ("octet.tensors.rotation", {"octet__tensors__rotation": None}),
        ("octet.tensors.scale_group is 64", {"octet__tensors__scale_group": i32s([64, 0])}),
        ("no such tensor", {"octet__tensors": strings(["a.weight", "z.weight"])}),
        ("only once", {"octet__tensors": strings(["a.weight", "a.weight"])}),
        ("it is f16", {"octet__tensors": strings(["a.weight", "c.weight"])}),
        ("octet.rotation.axis", {"octet__rotation__axis": string("output")}),
        ("octet.rotation.hash is 'mix32'", {"octet__rotation__hash": string("mix32")}),
        ("octet.rotation.seed is 65536", {"octet__rotation__seed": u32(65536)}),
        ("octet.rotation.seed", {"octet__rotation__seed": i32s([1])}),
        ("octet.smoothing is 'magic'", {"octet__smoothing": string("magic")}),
        ("general.architecture is 'llama'", {"general__architecture": string("llama")}),
        ("general.architecture", {"octet__tensors__rotation": i32s([0, 0])}),
    ],
)
def test_what_is_unknown_or_contradictory_is_refused(tmp_path, words, changes):
    with pytest.raises(OctetError) as caught:
        read(converted(**changes), tmp_path)
    message = str(caught.value)
    assert words.split(" is ")[0] in message
    assert words in message or words.replace(" is '", " is \"'") in message, message
    assert str(tmp_path / "m.gguf") in message


def test_a_block_that_does_not_divide_the_row(tmp_path):
    raw = converted()
    raw.tensors[1][1:4] = (96, 2), Q8_0, bytes(2 * 3 * 34)
    raw.values["octet.tensors.scale_group"] = i32s([0, 0])
    read(raw, tmp_path)
    for key, value in (("rotation", 64), ("scale_group", 128)):
        changed = converted(**{f"octet__tensors__{key}": i32s([0, value])})
        changed.tensors[1] = raw.tensors[1]
        with pytest.raises(OctetError, match=rf"{key} is '?{value}.*rows of 96"):
            read(changed, tmp_path)


def test_the_guard_alone_is_refused(tmp_path):
    with pytest.raises(OctetError, match=r"octet\.version"):
        read(Raw({"general.architecture": string("octet")}), tmp_path)
