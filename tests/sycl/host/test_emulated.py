"""The host side with the kernels of a card: their compiled IR runs in place of the card.

Each test is a process of its own, since a process has one driver for good.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import models
import pytest
from answers import same

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
FOLDERS = (HERE, HERE.parent, ROOT / "tests", ROOT / "tests/csrc", ROOT / "sycl")


@pytest.fixture(scope="module")
def emulated(offline, tmp_path_factory):
    """Run code with an emulator's driver at DRIVER; the finished process."""
    from emulator import make_driver

    folder = tmp_path_factory.mktemp("emulated")
    driver = make_driver(folder)

    def run(code, *arguments, **env):
        path = os.pathsep.join([*map(str, FOLDERS), os.environ.get("PYTHONPATH", "")])
        clean = {k: v for k, v in os.environ.items() if not k.startswith("OCTET_")}
        env = {"OCTET_CACHE_DIR": folder / "cache", **env}
        return subprocess.run(
            [sys.executable, "-c", SETUP + code, driver, *map(str, arguments)],
            env={**clean, "PYTHONPATH": path, **{k: str(v) for k, v in env.items()}},
            capture_output=True,
            text=True,
            timeout=900,
        )

    return run


SETUP = """
import json, sys
from pathlib import Path
from emulator import Emulator
from llama_octet import gpu
found = gpu.Gpu(Path(sys.argv[1]), gpu.sources(), Path("/nowhere"))
gpu.find = lambda: (found, "")
"""

LAYERS = """
import kernels
import numpy as np
from layers import activations, layer
from llama_octet.gpu_layers import Device
emulator = Emulator(found.driver)
ran = {}
for name, tokens, registers, work_groups, half, shape, glu in json.loads(sys.argv[2]):
    gate_up, down = name.split(":")
    device = Device(found, registers=registers, work_groups=work_groups)
    cpu, there = layer(device, gate_up, down, **shape)
    x, ids, w = activations(tokens, 4, shape["k"])
    expected = kernels.chain("scalar", *cpu, glu, x, ids, w)
    out = device.chain(*there, glu, x, ids, w, half=half)
    size = np.abs(expected).max()
    assert np.isfinite(expected).all() and size > 0
    if half:
        assert np.abs(out - expected).max() < 0.03 * size, name
    else:
        assert np.array_equal(out, expected), name
    for variant, queue in emulator.launched:
        ran[variant] = ran.get(variant, 0) + 1
    emulator.launched.clear()
    del there
    device.close()
assert not emulator._memory, "memory was not given back"
print(json.dumps(ran))
"""


def test_layers_have_the_bits_of_the_cpu(emulated):
    """Every pair, int8 of each range, few and many rows, with and without work-groups."""
    from layers import FLOAT_PAIRS, PAIRS
    from offline.variants import FLOAT_FORMATS, FORMATS

    ordinary = {"k": 256, "n_ff": 64, "n_out": 48}
    cases = [(f"{g}:{d}", 7, 256, True, False, ordinary, "swiglu") for g, d in PAIRS]
    cases += [
        (f"{PAIRS[0][0]}:{PAIRS[0][1]}", 260, 256, True, False, ordinary, "geglu"),
        (f"{PAIRS[4][0]}:{PAIRS[4][1]}", 130, 256, False, False, ordinary, "reglu"),
        (f"{PAIRS[1][0]}:{PAIRS[1][1]}", 1, 128, True, False, ordinary, "swiglu"),
    ]
    for group, k, n_ff, rotation in ((32, 96, 32, 0), (128, 384, 128, 128), (0, 320, 96, 32)):
        shape = {"k": k, "n_ff": n_ff, "n_out": 16, "group": group, "rotation": rotation}
        cases.append(("q8_0:q8_0", 30, 256, True, False, shape, "geglu"))
        cases.append(("q8_0:q8_0", 9, 256, True, True, shape, "swiglu"))
    cases += [(f"{g}:{d}", 9, 256, True, True, ordinary, "swiglu") for g, d in FLOAT_PAIRS]
    cases.append(("iq2_s:iq4_nl", 90, 256, True, True, {**ordinary, "merged": True}, "swiglu"))
    done = emulated(LAYERS, json.dumps(cases))
    assert done.returncode == 0, done.stderr
    ran = json.loads(done.stdout)
    kinds = ["rows-none-128-int8", "rows-none-128-half", "sum", "-plain", "-wg", "-grf128"]
    kinds += ["product_half-", *(f"-mt{n}" for n in (2, 4, 8))]
    kinds += [*(f"product-{f}-mt" for f in FORMATS), *(f"dequantize-{f}" for f in FLOAT_FORMATS)]
    assert [k for k in kinds if not any(k in name for name in ran)] == [], sorted(ran)


MODEL = """
import ctypes, hashlib, os
import llama_octet
emulator = Emulator(found.driver, devices=int(os.environ.get("OCTET_TEST_DEVICES", 1)))
emulator.broken.update(os.environ.get("OCTET_TEST_BROKEN", "").split())
llm = llama_octet.Llama(sys.argv[2], n_ctx=64, n_batch=32, n_threads=2, verbose=False)
prompt = llm.tokenize(b"The Debian handbook says that packages are " * 3)[:24]
tokens = []
for token in llm.generate(prompt, temp=0):
    tokens.append(token)
    if len(tokens) == 4:
        break
logits = ctypes.cast(llm._ctx.get_logits(), ctypes.POINTER(ctypes.c_float * llm.n_vocab()))
status = llama_octet.status()
experts = [t for t in status["tensors"] if "exps" in t["name"]]
by_queue = [sum(queue == n for _, queue in emulator.launched) for n in (1, 2)]
print(json.dumps({"tokens": tokens, "logits": hashlib.sha256(bytes(logits.contents)).hexdigest(),
                  "launched": by_queue, "gpus": status["gpus"],
                  "chains": {k: v for k, v in status["kernels"].items() if "chain" in k},
                  "layouts": [t["layout"] for t in experts],
                  "bytes": sum(t["bytes"] for t in experts)}))
"""


@pytest.fixture(scope="module")
def moe(tmp_path_factory):
    """tiny-moe in rotated int8."""
    if not models.TINY_MOE.is_file():
        pytest.skip(models.NO_TINY_MOE)
    out = tmp_path_factory.mktemp("moe") / "moe.gguf"
    command = [sys.executable, "-m", "llama_octet", "convert", models.TINY_MOE, out]
    subprocess.run(command, check=True, capture_output=True)
    return out


@pytest.fixture(scope="module")
def generate(emulated, moe):
    """Run MODEL; its answer, and what the plugin said."""

    def run(**env):
        done = emulated(MODEL, moe, **{"OCTET_W8A8": 1, **env})
        assert done.returncode == 0, done.stderr
        said = [line for line in done.stderr.splitlines() if line.startswith("octet: ")]
        return json.loads(done.stdout), said

    return run


@pytest.fixture(scope="module")
def cpu_answer(generate):
    answer, _ = generate(OCTET_SYCL=0)
    assert answer["gpus"] == [] and answer["launched"] == [0, 0]
    return answer


def test_a_model_generates_with_the_kernels_of_a_card(generate, cpu_answer):
    answer, said = generate()
    same(answer, cpu_answer)
    (chain,) = cpu_answer["chains"]
    assert answer["chains"] == {f"sycl {chain}": cpu_answer["chains"][chain]}
    assert answer["gpus"][0]["architecture"] == "bmg-g21"
    assert sum("OCTET-SYCL0" in line for line in said) == 1


def test_two_gpus_share_a_model(generate, cpu_answer):
    """Two layers fit into each; two of the six stay with the CPU."""
    room = int(2.5 * generate()[0]["bytes"] / 6)
    answer, said = generate(OCTET_TEST_DEVICES=2, OCTET_TEST_SYCL_MEMORY=room)
    same(answer, cpu_answer)
    assert [g["name"] for g in answer["gpus"]] == ["OCTET-SYCL0", "OCTET-SYCL1"]
    assert answer["gpus"][0]["weight_bytes"] == answer["gpus"][1]["weight_bytes"] > 0
    assert answer["launched"][0] == answer["launched"][1] > 0
    assert answer["layouts"].count("device") == 12 and answer["layouts"].count("packed") == 6
    (first, second) = [line for line in said if "no room" in line]
    assert "OCTET-SYCL1 is asked next" in first and "stays with the CPU" in second


def test_two_gpus_of_which_one_would_do(generate, cpu_answer):
    answer, said = generate(OCTET_TEST_DEVICES=2)
    same(answer, cpu_answer)
    assert answer["launched"][0] > 0 == answer["launched"][1]
    assert not any("no room" in line for line in said)


@pytest.mark.parametrize("file", ["sum.cpp", "product.cpp"])
def test_a_program_that_cannot_be_built(generate, cpu_answer, file):
    """Sums are needed by int8 and fp16 products alike; without int8 there is fp16."""
    answer, said = generate(OCTET_TEST_BROKEN=file)
    assert answer["tokens"] == cpu_answer["tokens"]
    (line,) = [line for line in said if f"{file} is broken" in line]
    if file == "sum.cpp":
        same(answer, cpu_answer)
        assert "the CPU takes over" in line and answer["gpus"][0]["off"]
    else:
        (name,) = answer["chains"]
        assert name.startswith("sycl half ")


LOAD = """
import llama_octet
emulator = Emulator(found.driver, 1, dpas=sys.argv[2] == "1", architecture=sys.argv[3].encode())
llama_octet.load()
print(len(llama_octet.status()["gpus"]))
"""


@pytest.mark.parametrize(
    ("dpas", "architecture", "wish", "used", "why"),
    [
        (1, "bmg-g31", "auto", 1, ""),
        (1, "0x1", "auto", 0, ""),
        (1, "0x1", "1", 1, ""),
        (0, "bmg-g21", "1", 0, "no int8 products of 8x16x32"),
        (0, "bmg-g21", "auto", 0, ""),
    ],
)
def test_which_gpus_are_used(emulated, dpas, architecture, wish, used, why):
    done = emulated(LOAD, dpas, architecture, OCTET_SYCL=wish)
    assert done.stdout == f"{used}\n", done.stderr
    assert ("no GPU is used" in done.stderr) == bool(why)
    assert why in done.stderr
