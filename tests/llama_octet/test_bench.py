"""`octet bench`: what it compares is the same computation, and it says so when it is not."""

import json
import subprocess
import sys
from types import SimpleNamespace

import gguf
import models
import numpy as np
import pytest
from llama_octet import cli
from llama_octet.bench import weights
from llama_octet.bench.synthetic import relative_error
from llama_octet.bench.timing import Budget, interleaved
from llama_octet.errors import OctetError, UsageError
from llama_octet.gguf_tools import rotation
from octet_helpers import clean_environment, complaint

SMALL = ("--shape", "512x256", "--experts", 8, "--used", 3, "--repeat", 2)
QUICK = ("--threads", 1, *SMALL, "--tokens", "1,5")


def last_line(done):
    """The complaint of a command that had loaded the backend, which says so on stderr."""
    assert done.returncode == 1, (done.returncode, done.stderr)
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    return done.stderr.splitlines()[-1]


@pytest.fixture(scope="module")
def isas(cache):
    """The instruction sets of this machine."""
    done = subprocess.run(
        [sys.executable, "-m", "llama_octet", "doctor", "--json"],
        capture_output=True,
        env=clean_environment(OCTET_CACHE_DIR=cache),
        check=True,
    )
    return json.loads(done.stdout)["isas"]


def check_rows(result, tokens):
    assert [row["tokens"] for row in result["rows"]] == tokens
    for row in result["rows"]:
        assert row["ours_ms"] > 0
        assert row["stock_ms"] > 0
        assert row["ratio"] == pytest.approx(row["stock_ms"] / row["ours_ms"])
    assert 0 < result["max_rel_err"] < 0.05


def test_experts(octet_json):
    result = octet_json("bench", *QUICK, "--gate-up", "iq3_s", "--down", "iq4_nl")
    assert (result["gate_up"], result["down"]) == ("iq3_s", "iq4_nl")
    assert (result["shape"], result["threads"]) == ("512x256", 1)
    check_rows(result, [1, 5])
    assert [row["rows_per_expert"] for row in result["rows"]] == [3 / 8, 15 / 8]


def test_two_threads(octet_json):
    result = octet_json("bench", *SMALL, "--threads", 2, "--tokens", "1,40")
    assert result["threads"] == 2
    check_rows(result, [1, 40])


@pytest.mark.parametrize("isa", ["scalar", "avx2", "avxvnni", "avx512vnni", "amx", "neon", "i8mm"])
def test_instruction_set(octet_json, isas, isa):
    if isa not in isas:
        pytest.skip(f"no {isa} here")
    result = octet_json("bench", *QUICK, "--isa", isa)
    assert result["isa"] == isa
    check_rows(result, [1, 5])


def test_the_difference_does_not_depend_on_the_instruction_set(octet_json, isas):
    # Our results are the same bits everywhere, and stock's are the same numbers every time.
    off = {octet_json("bench", *QUICK, "--isa", isa)["max_rel_err"] for isa in isas}
    assert len(off) == 1


@pytest.mark.parametrize(
    "types",
    [
        ("iq2_s", "iq4_nl"),
        ("iq3_xxs", "q2_0"),
        ("q8_0", "q8_0"),
        ("int8", "int8"),
        ("IQ3_S", "int8"),
    ],
)
def test_types(octet_json, types):
    result = octet_json("bench", *QUICK, "--gate-up", types[0], "--down", types[1])
    check_rows(result, [1, 5])


@pytest.mark.parametrize("glu", ["swiglu", "geglu", "reglu"])
@pytest.mark.parametrize("merged", [(), ("--merged",)])
def test_shapes_of_the_layer(octet_json, glu, merged):
    check_rows(octet_json("bench", *QUICK, "--glu", glu, *merged), [1, 5])


def test_routings_take_turns(octet_json):
    check_rows(octet_json("bench", *QUICK, "--routings", 3), [1, 5])


def test_time_of_the_thread(octet_json):
    check_rows(octet_json("bench", *SMALL, "--threads", 1, "--tokens", 2, "--cpu-time"), [2])


def test_native(octet_json):
    result = octet_json("bench", *QUICK, OCTET_LAYOUT="native")
    assert result["layout"] == "native"
    check_rows(result, [1, 5])


@pytest.mark.parametrize("kind", ["int8", "q8_0", "iq4_nl"])
def test_dense(octet_json, kind):
    result = octet_json(
        "bench", "--dense", "48x512", "--type", kind, "--repeat", 2, "--tokens", "1,33"
    )
    assert (result["dense"], result["type"]) == ("48x512", kind)
    check_rows(result, [1, 33])


def test_text(octet):
    done = octet("bench", *QUICK)
    assert done.returncode == 0, done.stderr
    assert "iq3_s:iq4_nl 512x256, 8 experts, 3 used" in done.stdout
    assert "ratio" in done.stdout
    assert "\r" not in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["--shape", "512"],
        ["--shape", "0x256"],
        ["--shape", "-1x256"],
        ["--shape", "500x256"],
        ["--shape", "512x250"],
        ["--experts", "1"],
        ["--experts", "many"],
        ["--used", "1"],
        ["--used", "9", "--experts", "8"],
        ["--gate-up", "banana"],
        ["--gate-up", "f16"],
        ["--down", "i32"],
        ["--down", ""],
        ["--tokens", "0"],
        ["--tokens", "1,,2"],
        ["--tokens", ""],
        ["--tokens", "1e3"],
        ["--threads", "0"],
        ["--isa", "mmx"],
        ["--glu", "silu"],
        ["--repeat", "0"],
        ["--seconds", "nan"],
        ["--seconds", "-1"],
        ["--seconds", "1", "--repeat", "2"],
        ["--dense", "5x5"],
        ["--dense", "64x64", "--experts", "4"],
        ["--dense", "64x64", "--merged"],
        ["--type", "q8_0"],
        ["--cpu-time", "--threads", "2"],
        ["--against", "model.gguf"],
        ["model.gguf", "--shape", "512x256"],
        ["model.gguf", "--tokens", "1"],
        ["model.gguf", "other.gguf"],
    ],
)
def test_wrong_usage(capsys, arguments):
    try:
        code = cli.main(["bench", *arguments])
    except SystemExit as end:
        code = end.code
    said = capsys.readouterr()
    complaint(SimpleNamespace(returncode=code, stdout=said.out, stderr=said.err))
    assert code == 2


def test_a_layer_too_large_for_memory(octet):
    done = octet("bench", "--shape", "999936x999936")
    assert "GiB" in complaint(done)


def test_a_type_that_is_not_ours(octet):
    done = octet("bench", *QUICK, "--gate-up", "q6_K")
    assert "leaves q6_K 512x256x8 to stock" in last_line(done)


def test_switched_off_is_no_comparison(octet):
    done = octet("bench", *QUICK, OCTET_MOE=0)
    assert "OCTET_MOE=0" in last_line(done)


def test_instruction_set_of_another_machine(octet, isas):
    isa = "neon" if "neon" not in isas else "avx2"
    done = octet("bench", *QUICK, "--isa", isa)
    assert f"OCTET_ISA={isa}" in complaint(done)


# ---- whole models


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A random model of floats."""
    return models.random_dense(tmp_path_factory.mktemp("bench") / "small.gguf")


def check_speeds(result):
    for side in ("ours", "stock"):
        assert result[side]["prompt_tps"] > 0
        assert result[side]["gen_tps"] > 0
    for key in ("prompt", "gen"):
        ours, stock = (result[side][f"{key}_tps"] for side in ("ours", "stock"))
        assert result["ratio"][key] == pytest.approx(ours / stock)
    assert any("int8" in kernel for kernel in result["kernels"])


def test_rotated_model_against_itself(octet_json, convert, small):
    model = convert(small)
    result = octet_json("bench", model, "--repeat", 1)
    assert result["model"] == result["against"] == str(model)
    assert (result["rounds"], result["gen_tokens"]) == (1, 64)
    check_speeds(result)


def test_model_against_its_source(octet, convert, small):
    done = octet("bench", convert(small), "--against", small, "--repeat", 1)
    assert done.returncode == 0, done.stderr
    assert str(small) in done.stdout
    assert "generation (64)" in done.stdout


def test_model_without_weights_for_us(octet, small):
    done = octet("bench", small, "--repeat", 1)
    assert "none of its weights ran" in last_line(done)


def test_model_that_is_not_there(octet, tmp_path):
    done = octet("bench", tmp_path / "none.gguf")
    assert "none.gguf" in complaint(done)
    assert done.returncode == 1


def test_model_that_is_damaged(octet, tmp_path):
    (tmp_path / "bad.gguf").write_bytes(b"GGUF" + bytes(40))
    done = octet("bench", tmp_path / "bad.gguf")
    assert "bad.gguf" in complaint(done)
    assert done.returncode == 1


# ---- the parts


def test_int8_and_q8_0_are_the_same_weights():
    kind = weights.kind_of("int8", "--type")
    theirs, ours = weights.make(kind, 40, 256, np.random.default_rng(1))
    assert theirs.shape == ours.shape == (40, 256 // 32 * 34)
    q8_0 = gguf.GGMLQuantizationType.Q8_0
    a, b = (gguf.quants.dequantize(x, q8_0).astype(np.float64) for x in (theirs, ours))
    turned = rotation.rotate(a, 128, weights.SEED)
    assert relative_error(b, turned) < 0.02
    # one scale for a whole row
    assert len(np.unique(ours.reshape(40, -1, 34)[:, :, :2].reshape(40, -1, 2), axis=1)[0]) == 1


def test_weights_vary_and_repeat_with_the_seed():
    kind = weights.kind_of("q8_0", "--type")
    made = [weights.make(kind, 2000, 1024, np.random.default_rng(1))[0] for _ in range(2)]
    assert np.array_equal(*made)
    assert len(np.unique(made[0], axis=0)) > 200


def test_routing_is_distinct_and_uneven():
    ids, share = weights.routing(400, 64, 8, np.random.default_rng(1))
    assert ids.dtype == np.int32
    assert all(len(set(row)) == 8 for row in ids)
    assert 0 <= ids.min() and ids.max() < 64
    counts = np.bincount(ids.ravel(), minlength=64)
    assert counts.max() > 2 * counts.mean() > 4 * counts.min() > 0
    assert share.sum(axis=1) == pytest.approx(1)


def test_relative_error_is_of_the_worst_row():
    stock = np.array([[3.0, 4.0], [0.0, 10.0]], np.float32)
    ours = np.array([[3.0, 4.5], [0.1, 10.0]], np.float32)
    assert relative_error(ours, stock) == pytest.approx(0.1)
    ours[0, 0] = np.nan
    with pytest.raises(OctetError):
        relative_error(ours, stock)


def test_pairs_take_turns():
    order = []
    found = interleaved(
        lambda: order.append("ours"),
        lambda: order.append("stock"),
        Budget(10, 3),
        lambda i: order.append(i),
    )
    assert order == [0, "ours", "stock", 1, "ours", "stock", 2, "ours", "stock"]
    assert found.pairs == 3


def test_budget():
    assert not Budget(1).over(4, 100)
    assert Budget(1).over(5, 1)
    assert not Budget(1).over(50, 0.9)
    assert Budget(1, 2).over(2, 0)
    assert not Budget(1, 2).over(1, 100)


def test_unknown_types():
    with pytest.raises(UsageError):
        weights.kind_of("f32", "--type")
