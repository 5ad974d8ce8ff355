"""A model's experts on a SYCL device: OpenCL's central processor takes a GPU's place.

Everything but the device code is what a GPU gets: driver, programs compiled at run time, memory,
launches. The arithmetic is exact, so what a fault leaves to the CPU changes no bit.
"""

import json
import shutil

import pytest
from answers import same
from llama_octet import gpu


@pytest.fixture(scope="module")
def sycl():
    where = gpu.prefix()
    if not (where and (where / "lib/libintelocl.so").is_file()):
        pytest.skip(
            "intel-sycl-rt and intel-opencl-rt are not installed (pip install '.[test-sycl]')"
        )


# Reads a prompt in two batches, then generates; prints tokens, a digest of the last logits, status.
GENERATE = """
import ctypes, hashlib, json, os, sys
import llama_octet
n = int(os.environ.get("OCTET_TEST_PROMPT", 60))
llm = llama_octet.Llama(sys.argv[1], n_ctx=256, n_batch=max(48, n - 12), n_threads=2, verbose=False)
prompt = llm.tokenize(b"The Debian handbook says that packages are " * 12)[:n]
tokens = []
for token in llm.generate(prompt, temp=0):
    tokens.append(token)
    if len(tokens) == 4:
        break
logits = ctypes.cast(llm._ctx.get_logits(), ctypes.POINTER(ctypes.c_float * llm.n_vocab()))
status = llama_octet.status()
print(json.dumps({"tokens": tokens, "logits": hashlib.sha256(bytes(logits.contents)).hexdigest(),
                  **{name: status[name] for name in ("kernels", "gpus", "tensors")}}))
"""


@pytest.fixture(scope="module")
def moe(sycl, convert, tiny_moe):
    return convert(tiny_moe, "--int8", "none", "--experts", "iq3_xxs:q2_0")


@pytest.fixture
def generate(program, moe):
    """Run GENERATE; its answer, and what the plugin said."""

    def run(**env):
        done = program(GENERATE, moe, **{"OCTET_MOE": 1, "OCTET_SYCL_DEVICE": "cpu", **env})
        assert done.returncode == 0, done.stderr
        said = [line for line in done.stderr.splitlines() if line.startswith("octet: ")]
        return json.loads(done.stdout), said

    return run


@pytest.fixture
def cpu_answer(generate, moe, known={}):  # noqa: B006
    """What the CPU engine answers; computed once."""
    if moe not in known:
        answer, said = generate(OCTET_SYCL_DEVICE=None, OCTET_SYCL=0)
        assert answer["gpus"] == [] and not any("SYCL" in line for line in said)
        known[moe] = answer
    return known[moe]


def test_generates_the_same_bits(generate, cpu_answer):
    answer, said = generate()
    same(answer, cpu_answer)
    (chain,) = cpu_answer["kernels"]
    assert answer["kernels"] == {f"sycl {chain}": cpu_answer["kernels"][chain]}
    assert all(t["layout"] == "device" for t in answer["tensors"])
    (device,) = answer["gpus"]
    assert device["name"] == "OCTET-SYCL0" and not device["off"] and device["weight_bytes"] > 0
    assert sum("OCTET-SYCL0" in line for line in said) == 1


# Calls are counted from the first one of the process: 18 weights are allocated and copied at load.
@pytest.mark.parametrize(
    "fault",
    [
        "count:1",
        "info:1",
        "open:1",
        "allocate:3!",  # one weight of the first layers
        "allocate:24",  # what the first layer computes in
        "copy:21",
        "launch:1",
        "launch:40",
        "wait:20",
        "wait:27",
    ],
)
def test_a_fault_changes_no_bit(generate, cpu_answer, fault):
    answer, said = generate(OCTET_TEST_SYCL_FAULT=fault)
    same(answer, cpu_answer)
    assert sum("a fault for a test" in line for line in said) == 1, said
    assert any(name.startswith("chain ") for name in answer["kernels"]), answer["kernels"]


@pytest.mark.parametrize("fault", ["build:1", "kernel:1 load:1"])
def test_without_programs(generate, cpu_answer, tmp_path, fault):
    """Nothing can be compiled, or taken from it: int8 is given up, then fp16, and the device."""
    answer, said = generate(OCTET_TEST_SYCL_FAULT=fault, OCTET_CACHE_DIR=tmp_path)
    same(answer, cpu_answer)
    (line,) = [line for line in said if "a fault for a test" in line]
    assert "the CPU takes over" in line


def test_without_int8_programs(generate, cpu_answer, tmp_path):
    """The float chain takes over: not the same bits, the same text."""
    answer, said = generate(OCTET_TEST_SYCL_FAULT="build:1!", OCTET_CACHE_DIR=tmp_path)
    assert sum("fp16 products instead of int8" in line for line in said) == 1, said
    assert answer["tokens"] == cpu_answer["tokens"]
    assert all(name.startswith("sycl half chain ") for name in answer["kernels"])


def test_without_memory_for_fp16(generate, cpu_answer):
    """OCTET_MOE=0 asks for fp16; int8 needs less."""
    answer, said = generate(OCTET_MOE=0, OCTET_TEST_SYCL_FAULT="allocate:24!")
    same(answer, cpu_answer)
    assert sum("int8 products instead of fp16" in line for line in said) == 1, said
    assert list(answer["kernels"]) == ["sycl chain float:float"]


def test_what_does_not_fit_stays_with_the_cpu(generate, cpu_answer):
    layer = sum(t["bytes"] for t in generate()[0]["tensors"]) // 6
    answer, said = generate(OCTET_TEST_SYCL_MEMORY=int(2.5 * layer))
    same(answer, cpu_answer)
    assert sum("no room" in line for line in said) == 1, said
    where = [t["layout"] for t in answer["tensors"]]
    assert where.count("device") == 6 and where.count("packed") == 12
    assert len(answer["kernels"]) == 2


def test_programs_are_kept_and_damaged_ones_rebuilt(generate, cpu_answer, tmp_path):
    first = generate(OCTET_CACHE_DIR=tmp_path)[0]["gpus"][0]
    kept = sorted(tmp_path.glob("gpu-program-*.bin"))
    assert first["programs_cached"] == 0 and first["programs_built"] == len(kept) > 0
    damaged = bytearray(kept[0].read_bytes())
    damaged[-100] ^= 1
    kept[0].write_bytes(damaged)
    kept[1].write_bytes(kept[1].read_bytes()[:-50])
    kept[2].write_bytes(b"")
    answer, _ = generate(OCTET_CACHE_DIR=tmp_path)
    same(answer, cpu_answer)
    (second,) = answer["gpus"]
    assert (second["programs_built"], second["programs_cached"]) == (3, len(kept) - 3)
    assert generate(OCTET_CACHE_DIR=tmp_path)[0]["gpus"][0]["programs_built"] == 0


@pytest.fixture
def not_measured(tmp_path, cache):
    """Settings with which a prompt has int8 and fp16 compared, of which nothing is known yet."""
    for pattern in ("gpu-program-*.bin", "sycl-driver-*.so"):  # of the other tests, to save time
        for kept in cache.glob(pattern):
            shutil.copy(kept, tmp_path)
    # One number of tiles: a third of the programs to compile.
    return {
        "OCTET_MOE": "auto",
        "OCTET_CACHE_DIR": tmp_path,
        "OCTET_SYCL_MT": 2,
        "OCTET_TEST_PROMPT": 96,
    }


def test_crossover_is_measured_once(generate, not_measured):
    """A prompt of many rows: int8 and fp16 are timed, and the faster one is taken."""
    first, said = generate(**not_measured)
    assert sum("int8 against fp16" in line for line in said) == 1, said
    again, said = generate(**not_measured)
    assert not any("int8 against fp16" in line for line in said), said
    assert again["tokens"] == first["tokens"] and again["kernels"] == first["kernels"]


def test_a_measurement_that_fails(generate, not_measured):
    """No memory for its weights: a rule takes its place, and no layer tries again."""
    answer, said = generate(**not_measured, OCTET_TEST_SYCL_FAULT="allocate:24!")
    (line,) = [line for line in said if "a fault for a test" in line]
    assert "cannot be compared" in line and "int8 below 64 rows per expert" in line
    assert all(name.startswith("sycl chain ") for name in answer["kernels"])


def test_report(sycl, octet, tmp_path):
    out = tmp_path / "report.json"
    env = {"OCTET_SYCL_DEVICE": "cpu", "OCTET_TEST_GPU_REPORT": "quick"}
    done = octet("doctor", "--gpu-report", out, **env)
    assert done.returncode == 0, done.stderr
    assert str(out) in done.stdout and "0 values differ" in done.stdout
    report = json.loads(out.read_text())
    for name in ("llama_octet", "kernels", "system", "cpu", "python", "sycl", "compiler"):
        assert report[name], name
    assert report["packages"]["intel-sycl-rt"] and report["switches"]["OCTET_SYCL_DEVICE"] == "cpu"
    (device,) = report["devices"]
    assert device["architecture"] == "cpu" and device["driver"] and device["failed"] == []
    assert all(0 < row["half_error"] < 0.05 for row in device["parity"])
    # IQ2_XS has no int8 products to compare.
    assert [row.get("different") for row in device["parity"]] == [0, 0, None, None]
    (row,) = device["crossover"]
    assert row["rows"] == 16 and row["int8_ms"] > 0 < row["half_ms"]
    assert device["bench"][0]["us_per_expert"] > 0
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]
    again = octet("doctor", "--gpu-report", out, **env)
    assert again.returncode == 1 and "exists" in again.stderr


def test_report_without_a_gpu(octet, tmp_path):
    done = octet("doctor", "--gpu-report", tmp_path / "report.json", OCTET_SYCL=0)
    assert done.returncode == 1 and "no GPU" in done.stderr
    assert not list(tmp_path.iterdir())


LOAD = """
import llama_octet
llama_octet.load()
print("libsycl" in open("/proc/self/maps").read(), llama_octet.status()["gpus"])
"""


@pytest.mark.skipif(gpu.present(), reason="this machine has a GPU")
def test_nothing_of_sycl_is_loaded_without_a_gpu(program):
    done = program(LOAD)
    assert done.stdout == "False []\n", done.stderr
    assert "GPU" not in done.stderr


def test_a_wish_that_cannot_be_met_is_one_line(program, tmp_path):
    """No SYCL where it is looked for: the CPU computes."""
    done = program(LOAD, OCTET_SYCL=1, before=[_without_sycl(tmp_path)])
    assert done.stdout == "False []\n", done.stderr
    (line,) = [text for text in done.stderr.splitlines() if "GPU" in text]
    assert line.startswith("octet: no GPU is used: SYCL is not installed (pip install")


def test_a_compiler_that_fails_is_one_line(sycl, program, tmp_path):
    done = program(LOAD, OCTET_SYCL_DEVICE="cpu", OCTET_CACHE_DIR=tmp_path, CXX="false")
    assert done.stdout == "False []\n", done.stderr
    assert "no GPU is used: the SYCL driver cannot be compiled by false" in done.stderr
    assert not list(tmp_path.glob("sycl-driver*"))


def _without_sycl(folder):
    """A start of Python in which the places of SYCL are elsewhere."""
    (folder / "sitecustomize.py").write_text(
        "import os, site, sys\n"
        "os.environ.pop('CMPLR_ROOT', None)\n"
        f"sys.prefix = site.USER_BASE = {str(folder)!r}\n"
    )
    return folder
