"""What OCTET_LAYOUT=auto makes of a model and of the memory there is."""

import json
import os
import re
import shlex
import subprocess
import sys
import uuid
from pathlib import Path

import gguf
import numpy as np
import pytest
from models import add_tokenizer, random_moe
from octet_helpers import clean_environment

MIB = 1 << 20
# Nothing to be measured; what is random in the weights is no matter here.
OURS = {"OCTET_W8A8": 1, "OCTET_MOE": 1}

# Loads a model, with a limit on this process's data of so many MiB more than it has now (0: none).
# What is mapped from a file is no data.
LOADS = """
import json, resource, sys
import numpy as np
import llama_octet
model, more, options = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
package = llama_octet.load().package
if more:
    (line,) = (x for x in open("/proc/self/status") if x.startswith("VmData:"))
    limit = (int(line.split()[1]) << 10) + (more << 20)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, resource.RLIM_INFINITY))
kind = package.Llama if options.pop("plain", False) else llama_octet.Llama
try:
    llm = kind(model, verbose=False, n_ctx=64, n_threads=2, n_threads_batch=2, logits_all=True,
               **options)
except ValueError as why:
    sys.exit(str(why))
llm.eval(list(b"what is told here is not told again"))
status = llama_octet.status()
print(json.dumps({
    "logits": llm.scores[: llm.n_tokens].tobytes().hex(),
    "layouts": sorted({t["layout"] for t in status["tensors"]}),
    "weights": len(status["tensors"]),
    "packed": status["bytes_packed"],
    "chains": status["kernels"]["chain q8_0:q8_0"]["calls"],
}))
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """57 MB of experts in q8_0."""
    path = tmp_path_factory.mktemp("layout") / "moe.gguf"
    return random_moe(path, n_embd=512, n_ff=576, experts=32, layers=2, kind="q8_0")


@pytest.fixture
def loaded(program, model):
    """Load the model with some memory and OCTET_LAYOUT; the finished program."""

    def run(more=0, layout=None, options=None, **env):
        env = OURS | {"OCTET_LAYOUT": layout} | env
        return program(LOADS, model, more, json.dumps(options or {}), **env)

    return run


def said(done) -> list[str]:
    """The lines about the layout."""
    return [x for x in done.stderr.splitlines() if x.startswith("octet: ") and "OCTET_LAYOUT" in x]


def result(done) -> dict:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def numbers(reason: str) -> list[int]:
    """Those of MiB in a line."""
    return [int(n) for n in re.findall(r"(\d+) MiB", reason)]


LITTLE = 48  # MiB: less than the packed weights, more than context and activations


def test_packed_where_it_fits(loaded, model):
    done = loaded()
    found = result(done)
    assert found["layouts"] == ["packed"]
    assert found["packed"] > 53 * MIB
    assert found["chains"] > 0
    (line,) = said(done)
    assert line.startswith(f"octet: {model}: weights are packed (OCTET_LAYOUT=auto: ")
    weights, rest, available = numbers(line)
    # The file and, in panels, no more than rounding to 64 bytes; keys and values of 64 tokens
    # (2 layers, 2 x 128, fp16) and logits of 512 tokens.
    assert weights * MIB == pytest.approx(model.stat().st_size, rel=0.05)
    assert rest == round((64 * 2 * 2 * 128 * 2 + 512 * 288 * 4) / MIB)
    (total,) = (x for x in open("/proc/meminfo") if x.startswith("MemTotal:"))
    assert weights < available <= int(total.split()[1]) / 1024


def test_in_place_where_it_does_not_fit_with_the_same_bits(loaded, model):
    packed = result(loaded(layout="packed"))
    # The limit is one: there is no room for a second copy.
    refused = loaded(LITTLE, layout="packed")
    assert refused.returncode == 1
    assert "no memory for" in refused.stderr
    done = loaded(LITTLE)
    found = result(done)
    (line,) = said(done)
    assert line.startswith(f"octet: {model}: weights stay the file's blocks (OCTET_LAYOUT=auto: ")
    assert numbers(line)[-1] <= LITTLE
    assert found == packed | {"layouts": ["native"], "packed": 0}
    assert result(loaded(LITTLE, layout="native")) == found


def test_a_choice_that_was_made_is_not_talked_about(loaded):
    for layout in ("packed", "native"):
        assert said(loaded(layout=layout)) == []


def test_two_models_each_as_it_fits(program, model, tmp_path):
    small = random_moe(tmp_path / "small.gguf", kind="q8_0")
    code = LOADS.replace(
        "status = ",
        "resource.setrlimit(resource.RLIMIT_DATA, [resource.RLIM_INFINITY] * 2)\n"
        "small = llama_octet.Llama(sys.argv[4], verbose=False, n_ctx=64)\n"
        "small.eval(list(b'so is this'))\n"
        "llm.reset()\n"
        "llm.eval(list(b'what is told here is not told again'))\n"
        "status = ",
    )
    one = result(program(LOADS, model, 0, "{}", **OURS))
    done = program(code, model, LITTLE, "{}", small, **OURS)
    both = result(done)
    assert both["layouts"] == ["native", "packed"]
    assert both["logits"] == one["logits"]
    assert ["are packed" in line for line in said(done)] == [False, True]


def test_plain_llama_cpp_packs_unless_the_file_is_named(loaded, model):
    done = loaded(options={"plain": True})
    assert result(done)["layouts"] == ["packed"]
    assert said(done) == []
    limited = loaded(LITTLE, options={"plain": True})
    assert limited.returncode == 1
    named = loaded(LITTLE, options={"plain": True}, OCTET_MODEL=model)
    assert result(named)["layouts"] == ["native"]


def test_load_quantizing_needs_room(program, tmp_path):
    # int8 made at load is no block of the file: without room for it stock computes with the file.
    path = random_moe(tmp_path / "f16.gguf", n_embd=512, n_ff=512, experts=32, kind="f16")
    code = "print(json.dumps([llm.n_tokens, llama_octet.status()['tensors']]))"
    code = LOADS[: LOADS.index("status = ")] + code
    done = program(code, path, LITTLE, "{}", OCTET_QUANTIZE=1)
    assert result(done) == [35, []]
    tokens, tensors = result(program(code, path, 0, "{}", OCTET_QUANTIZE=1))
    assert tokens == 35
    assert {t["layout"] for t in tensors} == {"packed"}


# ---- what is available


def hollow(path, experts: int, layers: int = 1) -> Path:
    """A mixture of 1 MiB expert matrices in q8_0, of zeros that take no space on disk."""
    embd, ff = 1024, 1024
    writer = gguf.GGUFWriter(str(path), "qwen3moe")
    writer.add_context_length(256)
    writer.add_embedding_length(embd)
    writer.add_feed_forward_length(ff)
    writer.add_expert_feed_forward_length(ff)
    writer.add_block_count(layers)
    writer.add_head_count(4)
    writer.add_head_count_kv(4)
    writer.add_key_length(64)
    writer.add_value_length(64)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    writer.add_expert_count(experts)
    writer.add_expert_used_count(2)
    add_tokenizer(writer)
    q8, f32 = gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.F32
    end = 0

    def tensor(name, shape, kind):
        nonlocal end
        size = int(np.prod(shape)) * (4 if kind is f32 else 34) // (1 if kind is f32 else 32)
        writer.add_tensor_info(name, shape, np.dtype(np.float32), size, kind)
        end += -(-size // 32) * 32

    tensor("token_embd.weight", (288, embd), q8)
    tensor("output_norm.weight", (embd,), f32)
    for i in range(layers):
        b = f"blk.{i}."
        for name in ("attn_norm", "ffn_norm"):
            tensor(f"{b}{name}.weight", (embd,), f32)
        for name in ("attn_q_norm", "attn_k_norm"):
            tensor(f"{b}{name}.weight", (64,), f32)
        for name in ("attn_q", "attn_k", "attn_v"):
            tensor(f"{b}{name}.weight", (256, embd), q8)
        tensor(f"{b}attn_output.weight", (embd, 256), q8)
        tensor(f"{b}ffn_gate_inp.weight", (experts, embd), f32)
        for name in ("gate", "up"):
            tensor(f"{b}ffn_{name}_exps.weight", (experts, ff, embd), q8)
        tensor(f"{b}ffn_down_exps.weight", (experts, embd, ff), q8)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    size = -(-path.stat().st_size // 32) * 32 + end
    os.truncate(path, size)
    return path


def test_larger_than_the_machine(octet_json, tmp_path):
    (total,) = (x for x in open("/proc/meminfo") if x.startswith("MemTotal:"))
    experts = int(total.split()[1]) // 1024 // 3 + 1
    path = hollow(tmp_path / "large.gguf", experts)
    assert path.stat().st_blocks * 512 < MIB
    layout = octet_json("inspect", path)["layout"]
    assert layout["layout"] == "native"
    assert numbers(layout["reason"])[0] * MIB > path.stat().st_size * 0.98
    assert octet_json("inspect", path, OCTET_LAYOUT="packed")["layout"]["layout"] == "packed"


def test_inspect_shows_the_layout(octet, tmp_path):
    path = hollow(tmp_path / "small.gguf", 2)
    last = octet("inspect", path).stdout.splitlines()[-1]
    assert last.startswith("layout: packed (OCTET_LAYOUT=auto: ")
    last = octet("inspect", path, OCTET_LAYOUT="native").stdout.splitlines()[-1]
    assert last == "layout: native (OCTET_LAYOUT)"


class Group:
    """A control group for memory; processes are put into it by a shell."""

    FILES = (
        (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
        (Path("/sys/fs/cgroup"), "memory.max"),
    )

    def __init__(self, mebibytes: int):
        name = f"octet-test-{uuid.uuid4().hex}"
        for root, limit in self.FILES:
            self.folder = root / name
            try:
                self.folder.mkdir()
            except OSError:
                continue
            try:
                (self.folder / limit).write_text(str(mebibytes * MIB))
                return
            except OSError:
                self.folder.rmdir()
        pytest.skip("no control group for memory can be made here")

    def below(self) -> Path:
        """A group inside of it, without a limit of its own."""
        child = self.folder / "child"
        child.mkdir()
        return child

    def close(self):
        for folder in (self.folder / "child", self.folder):
            if folder.is_dir():
                folder.rmdir()


@pytest.fixture
def group(request):
    made = Group(request.param)
    yield made
    made.close()


def inside(folder, cache, *command, **env):
    """Run a shell command in a group; its JSON."""
    join = f"echo $$ > {shlex.quote(str(folder / 'cgroup.procs'))} && "
    done = subprocess.run(
        ["bash", "-c", join + " ".join(command)],
        capture_output=True,
        text=True,
        env=clean_environment(OCTET_CACHE_DIR=cache, **env),
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, (done.returncode, done.stderr)
    return json.loads(done.stdout)


def octet_command(*arguments) -> str:
    return shlex.join([sys.executable, "-m", "llama_octet", *map(str, arguments), "--json"])


@pytest.mark.parametrize("group", [512], indirect=True)
def test_a_control_group_is_a_limit(group, cache, tmp_path, octet_json):
    fits, not_ = hollow(tmp_path / "a.gguf", 64), hollow(tmp_path / "b.gguf", 200)
    assert octet_json("inspect", not_)["layout"]["layout"] == "packed"
    for folder in (group.folder, group.below()):
        found = inside(folder, cache, octet_command("inspect", not_))["layout"]
        assert found["layout"] == "native"
        assert 256 < numbers(found["reason"])[-1] <= 512
        found = inside(folder, cache, octet_command("inspect", fits))["layout"]
        assert found["layout"] == "packed"
        # Files that are cached in the group make room.
        out = shlex.quote(f"of={tmp_path / 'file'}")
        fill = f"dd if=/dev/zero {out} bs=1M count=300 conv=fdatasync 2>/dev/null &&"
        again = inside(folder, cache, fill, octet_command("inspect", fits))["layout"]
        assert again["layout"] == "packed"


@pytest.mark.parametrize("group", [320], indirect=True)
def test_a_model_larger_than_memory_runs(group, cache, tmp_path):
    path = hollow(tmp_path / "large.gguf", 150)
    assert path.stat().st_size > 450 * MIB
    run = octet_command("run", path, "-p", "hi", "-n", 2, "--ctx", 64)
    found = inside(group.folder, cache, run, **OURS)
    assert {t["layout"] for t in found["status"]["tensors"]} == {"native"}
    assert found["status"]["kernels"]["chain q8_0:q8_0"]["calls"] > 0


# ---- timings are those of the layout

KEEP = """
library = llama_octet.load().library
from llama_octet import header
for layout, ratio in (("packed", 2), ("native", 0.5)):
    library.model_begin("a test", header.Header(None, False, None), 2)
    samples = [[rows, 0.5, 0.5 * ratio] for rows in (1, 8, 16, 32)]
    assert library.keep_crossover("chain q8_0:q8_0 512x576", samples, layout) == ""
    library.model_end()
"""


def test_timings_of_the_layout_are_followed(program, model, tmp_path):
    code = LOADS.replace("if more:", KEEP + "if more:")
    code = code[: code.index("status = ")] + (
        "print(json.dumps([[t['name'], t['layout']] for t in llama_octet.status()['tensors']]))"
    )
    env = {"OCTET_W8A8": 0, "OCTET_CACHE_DIR": tmp_path}
    held = result(program(code, model, 0, "{}", **env))
    assert len(held) == 2 * 3
    assert {layout for _, layout in held} == {"packed"}
    # In place stock is faster here, so it gets the experts.
    assert result(program(code, model, LITTLE, "{}", **env)) == []


def test_timings_are_taken_in_the_layout(program, tmp_path):
    code = """
import json, llama_octet
from llama_octet import crossover, header
crossover.SECONDS = 100
library = llama_octet.load().library
for layout in ("native", "packed"):
    library.model_begin("a test", header.Header(None, False, None), 1)
    assert crossover.measure(library, ["dense q8_0 64x64"], 1, layout) == {}
    library.model_end()
print(json.dumps([[e["layout"], e["current"]] for e in library.crossovers()["entries"]]))
"""
    found = result(program(code, OCTET_CACHE_DIR=tmp_path))
    assert found == [["native", True], ["packed", True]]
    shown = code[: code.index("for layout")] + code[code.index("print(") :]
    found = result(program(shown, OCTET_CACHE_DIR=tmp_path, OCTET_LAYOUT="packed"))
    assert sorted(found) == [["native", False], ["packed", True]]
