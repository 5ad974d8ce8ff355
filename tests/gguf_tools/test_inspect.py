import argparse
import json

import pytest
from llama_octet.gguf_tools import inspect as command
from llama_octet.gguf_tools.convert import convert
from llama_octet.gguf_tools.errors import OctetError
from llama_octet.gguf_tools.inspect import inspect


def test_a_plain_file(dense):
    result = inspect(dense)
    assert result["converted"] is None
    assert result["architecture"] == "llama"
    assert result["bytes"] == dense.stat().st_size
    tensors = {t["name"]: t for t in result["tensors"]}
    q = tensors["blk.0.attn_q.weight"]
    assert (q["type"], q["shape"], q["rotation"], q["scale_group"]) == (
        "f16",
        [256, 256],
        None,
        None,
    )
    assert q["bytes"] == 2 * 256 * 256


def test_a_converted_file(tmp_path, moe):
    convert(moe, tmp_path / "out.gguf", seed=4, scale_group=128, experts="iq4_nl:q8_0")
    result = json.loads(json.dumps(inspect(tmp_path / "out.gguf")))
    assert result["architecture"] == "qwen3moe"
    assert result["converted"]["seed"] == 4
    assert result["converted"]["guard"] is True
    tensors = {t["name"]: t for t in result["tensors"]}
    q = tensors["blk.0.attn_q.weight"]
    assert (q["type"], q["rotation"], q["scale_group"]) == ("int8", 128, 128)
    # A plain Q8_0 tensor is not octet's, though its type is the same.
    assert tensors["blk.0.ffn_down_exps.weight"]["type"] == "q8_0"
    assert tensors["blk.0.ffn_down_exps.weight"]["rotation"] is None
    text = command.render(result)
    line = next(line for line in text.splitlines() if "attn_q.weight" in line)
    assert line.split()[1:] == ["int8", "256×256", "128", "128"]


def test_paths_are_asked_for_and_shown(tmp_path, dense):
    convert(dense, tmp_path / "out.gguf")
    asked = []

    def path_of(name, kind, shape):
        asked.append((name, kind, tuple(shape)))
        return {"path": "w8a8", "reason": "because"}

    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    result = command.run(parser.parse_args([str(tmp_path / "out.gguf")]), path_of)
    assert ("blk.0.attn_q.weight", "q8_0", (256, 256)) in asked
    assert {t["path"] for t in result["tensors"]} == {"w8a8"}
    assert "w8a8: because" in command.render(result)


def test_files_that_cannot_be_inspected(tmp_path):
    (tmp_path / "m.gguf").write_bytes(b"GGUF" + bytes(30))
    with pytest.raises(OctetError, match=r"m\.gguf"):
        inspect(tmp_path / "m.gguf")
