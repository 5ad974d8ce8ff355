"""Measured crossovers: how they are judged and kept, when they are measured, what follows.

No test here depends on how fast anything is: where it matters who is faster, the timings are put
into the cache, as a measurement would.
"""

import json
import subprocess
import sys

import numpy as np
import pytest
from models import random_dense, random_moe
from octet_helpers import clean_environment

ROWS = (1, 8, 16, 32, 64, 128, 256)
# A program that begins by putting timings into the cache: {label: [[rows, ours, stock], ...]}.
KEEP = """
import json, os, sys
import llama_octet
from llama_octet import header
library = llama_octet.load().library

def announce(threads=0, tensors=()):
    library.model_begin("a test", header.Header(None, False, None, 0, tuple(tensors)), threads)

def keep(label, samples, threads=0):
    announce(threads)
    try:
        return library.keep_crossover(label, samples)
    finally:
        library.model_end()

def entries():
    return library.crossovers()["entries"]
"""


def ran(done):
    """The JSON that a program printed last."""
    assert done.returncode == 0, (done.returncode, done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def timings(*ratios) -> list:
    """Timings with these ratios, stock / ours, at ROWS."""
    return [[rows, 0.5, 0.5 * ratio] for rows, ratio in zip(ROWS, ratios, strict=True)]


@pytest.fixture
def folder(tmp_path):
    """A cache folder of this test's own."""
    return tmp_path / "a cache"


@pytest.fixture
def here(program, folder):
    """Run a program after KEEP, with a cache of its own."""

    def run(code, *arguments, **env):
        return program(KEEP + code, *arguments, **{"OCTET_CACHE_DIR": folder, **env})

    return run


@pytest.fixture(scope="module")
def moe(tmp_path_factory):
    """A mixture of experts in plain q8_0, all of it: 8 experts, 2 used."""
    return random_moe(tmp_path_factory.mktemp("moe") / "moe.gguf", kind="q8_0")


CHAIN = "chain q8_0:q8_0 256x256"

# ---- judging and keeping


def steps(first, last):
    """Ratios that move steadily from one to the other."""
    return np.geomspace(first, last, len(ROWS)).tolist()


FALLING = [2, 1.6, 1.3, 1.1, 0.9, 0.7, 0.5]
JUDGED = {
    # ratios: (rows between which it passes 1, clear)
    "always ours": ([2] * 7, None, True),
    "always stock": ([0.5] * 7, None, True),
    "uneven but far from 1": ([1.1, 9, 1.2, 3, 1.06, 2, 1.3], None, True),
    "once close to 1": ([2, 2, 2, 1.04, 2, 2, 2], None, False),
    "once close to 1, stock": ([0.5, 0.5, 0.97, 0.5, 0.5, 0.5, 0.5], None, False),
    "passes, falling": (FALLING, (32, 64), True),
    "passes, rising": (FALLING[::-1], (16, 32), True),
    "close before the crossing": ([2, 1.6, 1.3, 1.04, 0.9, 0.7, 0.5], (32, 64), False),
    "close behind the crossing": ([2, 1.6, 1.3, 1.1, 0.97, 0.7, 0.5], (32, 64), False),
    "a small step back": ([2, 1.6, 1.66, 1.1, 0.9, 0.7, 0.5], (32, 64), True),
    "a large step back": ([2, 1.3, 1.6, 1.1, 0.9, 0.7, 0.5], (32, 64), False),
    "a large step back behind": ([2, 1.6, 1.3, 1.1, 0.5, 0.7, 0.5], (32, 64), False),
    "there and back": ([2, 1.5, 0.5, 0.4, 0.5, 1.5, 2], (8, 16), False),
}


@pytest.fixture(scope="module")
def judged(tmp_path_factory, program_of_module):
    """What became of JUDGED: {name: entry}."""
    requests = {name: timings(*ratios) for name, (ratios, _, _) in JUDGED.items()}
    code = """
for label, samples in json.loads(sys.argv[1]).items():
    assert keep(label, samples) == ""
print(json.dumps(entries()))
"""
    folder = tmp_path_factory.mktemp("judged")
    found = ran(program_of_module(KEEP + code, json.dumps(requests), OCTET_CACHE_DIR=folder))
    return {entry["label"]: entry for entry in found}


@pytest.fixture(scope="module")
def program_of_module():
    """`program` of conftest.py for fixtures that outlive a test."""

    def run(code, *arguments, **env):
        return subprocess.run(
            [sys.executable, "-c", code, *map(str, arguments)],
            capture_output=True,
            text=True,
            env=clean_environment(**env),
            timeout=600,
            check=False,
        )

    return run


@pytest.mark.parametrize("name", JUDGED)
def test_judged(judged, name):
    ratios, passes, clear = JUDGED[name]
    entry = judged[name]
    assert entry["samples"] == timings(*ratios)
    assert entry["clear"] is clear
    assert ("not clearly" in entry["verdict"]) is not clear
    if passes is None:
        assert entry["crossing"] is None
        assert entry["verdict"].startswith("ours" if ratios[0] > 1 else "stock")
    else:
        # Where the line between the two samples passes 1, both axes logarithmic.
        at = [ROWS.index(rows) for rows in passes]
        y, x = np.log([ratios[i] for i in at]), np.log([ROWS[i] for i in at])
        expected = np.exp(x[0] - y[0] * (x[1] - x[0]) / (y[1] - y[0]))
        assert entry["crossing"] == pytest.approx(expected, rel=1e-4)
    # Generating (1 row) counts as much as reading prompts (the others).
    logs = np.log(ratios)
    weighted = np.exp((logs[0] + logs[1:].mean()) / 2)
    assert entry["weighted"] == pytest.approx(weighted, rel=1e-4)


def test_timings_that_make_no_sense_are_refused(here, folder):
    wrong = [[[1, 1]], [[1, 0, 1]], [[1, 1, -1]], [[8, 1, 1], [1, 1, 1]], [[1, 1, 1], [1, 1, 1]]]
    wrong += [[[1, 1, float("nan")]], [[1, float("inf"), 1]], [[0, 1, 1]]]
    code = """
refused = 0
for samples in json.loads(sys.argv[1]):
    try:
        keep("dense q8_0 64x64", samples)
    except llama_octet.OctetError as why:
        assert "dense q8_0 64x64" in str(why)
        refused += 1
print(json.dumps([refused, entries()]))
"""
    assert ran(here(code, json.dumps(wrong))) == [len(wrong), []]
    assert not folder.exists() or not list(folder.glob("crossover-*"))


DECIDE = """
def measured(threads=0):
    announce(threads, [header.Tensor("blk.0.attn_q.weight", "q8_0", (256, 64))])
    try:
        return library.decide("blk.0.attn_q.weight", "q8_0", (256, 64))["measured"]
    finally:
        library.model_end()
"""
DENSE = "dense q8_0 64x256"


def test_a_matching_key_is_found_and_no_other(here):
    keep = f"print(json.dumps(keep({DENSE!r}, {timings(*FALLING)!r}, 2)))"
    assert ran(here(keep)) == ""
    code = (
        DECIDE
        + """
found = [measured(2), measured(3), entries()[0]["current"]]
library.set_stock("another build of ggml")
print(json.dumps([*found, measured(2), entries()[0]["current"]]))
"""
    )
    assert ran(here(code)) == [True, False, True, False, False]
    one = DECIDE + "print(json.dumps([measured(2), len(entries()), library.status()['isas']]))"
    *_, isas = ran(here(one))
    assert ran(here(one, OCTET_LAYOUT="native"))[:2] == [False, 1]
    if "avx2" in isas:
        assert ran(here(one, OCTET_ISA="avx2"))[:2] == [isas[-1] == "avx2", 1]


def test_what_cannot_be_read_counts_as_not_there(here, folder):
    keep = f"print(json.dumps([keep({DENSE!r}, {timings(*FALLING)!r}), entries()]))"
    before = ran(here(keep))[1]
    (good,) = folder.glob("crossover-*.txt")
    text = good.read_bytes()
    for i, damaged in enumerate(
        [
            b"",
            b"octet crossover 1\n",
            text[: len(text) // 2],
            text[:-1],
            text + b"more",
            text.replace(b"0.5", b"0.4", 1),
            text.replace(b"octet crossover 1", b"octet crossover 2"),
            bytes(1000),
            b"\xff\xfe" * 400,
            text * 400,
        ]
    ):
        (folder / f"crossover-{i:016}.txt").write_bytes(damaged)
    (folder / "crossover-folder.txt").mkdir()
    assert ran(here("print(json.dumps(entries()))")) == before
    # The good one damaged, too: it is as if there were none, and is written again.
    good.write_bytes(text[:-2])
    assert ran(here("print(json.dumps(entries()))")) == []
    assert ran(here(keep))[1] == before
    assert good.read_bytes() == text


def test_a_folder_that_cannot_be_written(here, tmp_path):
    file = tmp_path / "a file"
    file.write_text("")
    code = DECIDE + f"print(json.dumps([keep({DENSE!r}, {timings(*FALLING)!r}, 2), measured(2)]))"
    why, measured = ran(here(code, OCTET_CACHE_DIR=file))
    assert str(file) in why
    assert measured is True  # in this process


def test_both_sides_mean_the_same_folder(here):
    code = """
import os
from llama_octet import cache
for env in (
    {"OCTET_CACHE_DIR": "/x/y"}, {"OCTET_CACHE_DIR": "z"}, {"XDG_CACHE_HOME": "/x"},
    {"XDG_CACHE_HOME": "x"}, {"XDG_CACHE_HOME": "", "HOME": "/home/of one"}, {},
):
    for name in ("OCTET_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        os.environ.pop(name, None)
    os.environ.update(env)
    assert library.crossovers()["folder"] == str(cache.folder()), env
print(json.dumps("done"))
"""
    assert ran(here(code)) == "done"


# ---- measuring

# However busy the machine is: the time is a limit, not what is needed.
PATIENT = """
from llama_octet import crossover
crossover.SECONDS = 100
"""
NEVER = """
from llama_octet import crossover
def _ask_child(*_):
    raise AssertionError("measured again")
crossover._ask_child = _ask_child
"""
LOAD = """
llm = llama_octet.Llama(sys.argv[1], verbose=False, n_ctx=128, n_threads=1, n_threads_batch=1)
prompt = llm.tokenize(b"a prompt of more than sixteen tokens, one a byte")
for token in llm.generate(prompt, temp=0):
    if llm.n_tokens > 52:
        break
"""
ANSWER = "print(json.dumps([llama_octet.status()['kernels'], entries()]))"
EXPERTS_ONLY = {"OCTET_W8A8": 0}  # of moe, whose dense weights are q8_0 as well


def lines_about(done, word) -> list:
    return [
        line for line in done.stderr.splitlines() if line.startswith("octet: ") and word in line
    ]


def test_measured_once(here, moe):
    first = here(PATIENT + LOAD + ANSWER, moe, **EXPERTS_ONLY)
    _, (entry,) = ran(first)
    assert entry["label"] == CHAIN
    assert [rows for rows, *_ in entry["samples"]] == list(ROWS)
    assert (entry["threads"], entry["current"]) == ("1", True)
    assert len(lines_about(first, "timing")) == 1
    assert CHAIN in lines_about(first, "timing")[0]
    second = here(NEVER + LOAD + ANSWER, moe, **EXPERTS_ONLY)
    assert ran(second)[1] == [entry]
    assert lines_about(second, "timing") == []


def test_time_that_is_not_enough_is_spent_once(here, moe):
    # A child that starts too late has no time for a single sample; what it says is kept.
    none = PATIENT.replace("100", "0") + "crossover.LEAST = 0\n"
    first = here(none + LOAD + ANSWER, moe, **EXPERTS_ONLY)
    kernels, (entry,) = ran(first)
    assert (entry["label"], entry["samples"], entry["clear"]) == (CHAIN, [], False)
    (line,) = lines_about(first, "not enough")
    assert CHAIN in line
    assert "--remeasure" in line
    second = here(NEVER + LOAD + ANSWER, moe, **EXPERTS_ONLY)
    # The default, again.
    assert ran(second) == [kernels, [entry]]
    assert kernels["chain q8_0:q8_0"]["calls"] > 0


@pytest.mark.parametrize("samples", [1, 2])
def test_few_samples_tell_nothing(here, samples):
    few = timings(*[0.5] * 7)[:samples]
    code = f"print(json.dumps([keep({DENSE!r}, {few!r}), entries()]))"
    why, (entry,) = ran(here(code))
    assert (why, entry["samples"], entry["clear"]) == ("", few, False)
    assert "not enough" in entry["verdict"]
    assert ran(here("print(json.dumps(entries()))")) == [entry]


def test_every_kind_of_layer_is_measured(here, moe):
    done = here(PATIENT + LOAD + ANSWER, moe)
    shapes = ("256x256", "128x256", "288x256")  # q and output; k and v; the head
    wanted = {CHAIN, *(f"dense q8_0 {shape}" for shape in shapes)}
    assert {entry["label"] for entry in ran(done)[1]} == wanted


def test_nothing_is_measured_for_what_is_settled(here, moe, convert, tmp_path):
    # Forced either way; and rotated tensors, which only this project's kernels can read.
    for value in (0, 1):
        done = here(NEVER + LOAD + ANSWER, moe, OCTET_W8A8=value, OCTET_MOE=value)
        kernels, kept = ran(done)
        assert kept == []
        assert bool(kernels) is bool(value)
    rotated = convert(random_dense(tmp_path / "dense.gguf", layers=1))
    assert ran(here(NEVER + LOAD + ANSWER, rotated))[1] == []


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"),
        ("raise SystemExit('no such thing')", "no such thing"),
        ("print('nonsense')\nraise SystemExit", "nonsense"),
        ("import time\ntime.sleep(100)", "more than"),
    ],
)
def test_a_measurement_that_fails(here, moe, tmp_path, code, why):
    # The child looks where we look for modules, and ends while it imports this one.
    (tmp_path / "numpy.py").write_text(code)
    wait = "crossover.SECONDS = crossover.GRACE = 0.5\n" if "sleep" in code else ""
    done = here(
        f"sys.path.insert(0, {str(tmp_path)!r})\n{PATIENT}{wait}{LOAD}{ANSWER}", moe, **EXPERTS_ONLY
    )
    kernels, kept = ran(done)
    assert kept == []
    assert kernels["chain q8_0:q8_0"]["calls"] > 0  # the default
    (line,) = lines_about(done, "failed")
    assert why in line
    assert CHAIN in line


def test_a_child_that_dies_late_keeps_what_it_had(here, tmp_path):
    (tmp_path / "numpy.py").write_text(
        "import json, os, signal\n"
        f"print(json.dumps({{'label': {DENSE!r}, 'samples': {timings(*FALLING)!r}}}), flush=True)\n"
        "os.kill(os.getpid(), signal.SIGILL)\n"
    )
    code = f"""
sys.path.insert(0, {str(tmp_path)!r})
from llama_octet import crossover
announce()
failed = crossover.measure(library, [{DENSE!r}, {CHAIN!r}], 1, "packed")
print(json.dumps([failed, [e["label"] for e in entries()]]))
"""
    assert ran(here(code)) == [{CHAIN: "it died of SIGILL"}, [DENSE]]


@pytest.mark.parametrize(
    "label",
    [
        "chain iq3_s:iq4_nl 2560x640",
        "chain iq2_xxs:q2_0 7168x2048",
        "chain q8_0:q8_0 256x256",
        "experts mxfp4 2880x2880",
        "experts iq4_xs 16384x16384",
        "dense q8_0 262144x640",
        "dense q4_0 96x32",
    ],
)
def test_what_is_timed_is_of_that_kind_and_not_too_large(label):
    from llama_octet import crossover_child

    what = crossover_child.layer_of(label)
    kinds = label.split()[1].split(":")
    assert {m.kind.name for m in what.matrices} == set(kinds)
    assert sum(m.rows * m.columns * m.experts for m in what.matrices) <= crossover_child.LARGEST
    for m in what.matrices:
        assert m.columns % m.kind.ggml.block == 0
    a, b = map(int, label.split()[2].split("x"))
    one = what.matrices[0]
    assert {a, b} == {one.rows, one.columns} or a * b * 3 * 4 > crossover_child.LARGEST
    assert (one.experts > 1) is (label.split()[0] != "dense")


def test_every_type_of_ours_can_be_timed(here):
    # As the child does it, but for the time it takes: ours and stock have to agree on the results.
    code = """
from llama_octet import crossover_child as child
from llama_octet.gguf_tools import ggml
child.ROWS, child.POINT, child.LEAST_PAIRS = (1, 8, 17), 0, 1
loaded, found = llama_octet.load(), []
for name in ggml._KNOWN_IDS.values():
    if library.decide("blk.0.ffn_down_exps.weight", name, (256, 32, 8))["path"] == "int8":
        for label in (f"experts {name} 32x256", f"dense {name} 32x256"):
            samples = child.curve(loaded, label, 1, False, float("inf"))
            assert [rows for rows, *_ in samples] == [1, 8, 17], samples
        found.append(name)
child.curve(loaded, "chain iq3_s:q2_0 256x512", 2, False, float("inf"))
print(json.dumps(found))
"""
    found = ran(here(code, OCTET_MOE=1, OCTET_DENSE=1, OCTET_W8A8=1))
    assert {"q8_0", "q4_0", "mxfp4", "iq4_nl", "iq4_xs", "q2_0"} <= set(found)
    assert {"iq3_s", "iq3_xxs", "iq2_s", "iq2_xs", "iq2_xxs"} <= set(found)


# ---- following


def followed(here, model, ratios, label=CHAIN, load=LOAD, **env):
    """The kernels that ran with these timings in the cache, and why we hold which tensors."""
    keep = f"assert keep({label!r}, {timings(*ratios)!r}, 1) == ''\n"
    done = here(
        NEVER + keep + load + "print(json.dumps(llama_octet.status()))", model, **EXPERTS_ONLY | env
    )
    status = ran(done)
    return status["kernels"], {t["name"]: t["reason"] for t in status["tensors"]}


CHAIN_KERNEL = "chain q8_0:q8_0"


def test_ours_where_it_is_faster(here, moe):
    kernels, held = followed(here, moe, [2] * 7)
    assert kernels[CHAIN_KERNEL]["calls"] > 0
    assert len(held) == 2 * 3
    assert all("ours at any number" in reason for reason in held.values())


def test_stock_where_it_is_faster(here, moe):
    assert followed(here, moe, [0.5] * 7) == ({}, {})


def test_unclear_is_the_default(here, moe):
    kernels, held = followed(here, moe, [0.5, 0.5, 0.97, 0.5, 0.5, 0.5, 0.5])
    assert kernels[CHAIN_KERNEL]["calls"] > 0
    assert all("not clearly" in reason for reason in held.values())


def test_packed_weights_go_one_way_on_balance(here, moe):
    # 1.6 while generating; 1.2 or 0.4 over all while reading.
    _, held = followed(here, moe, [1.6, 1.5, 1.4, 1.3, 1.2, 1.1, 0.9])
    assert len(held) == 2 * 3
    assert all("ours on balance" in reason for reason in held.values())
    assert followed(here, moe, [1.6, 0.9, 0.5, 0.3, 0.2, 0.1, 0.1]) == ({}, {})


LONG = LOAD.replace("n_ctx=128", "n_ctx=256").replace("a byte", "a byte" + " and so on" * 8)


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize("ours", ["few", "many"])
def test_blocks_in_place_change_sides_with_the_rows(here, moe, ours, mmap):
    # More than 120 tokens at once are 30 rows per expert, one token is a quarter of a row. Of a
    # prompt the second of the two layers sees only the last token, whose logits are wanted.
    ratios = [2, 2, 0.5, 0.5, 0.5, 0.5, 0.5] if ours == "few" else [0.5, 0.5, 2, 2, 2, 2, 2]
    load = LONG.replace("verbose=False", f"verbose=False, use_mmap={mmap}").replace("52", "140")
    kernels, held = followed(here, moe, ratios, load=load, OCTET_LAYOUT="native")
    assert len(held) == 2 * 3
    calls, rows = kernels[CHAIN_KERNEL]["calls"], kernels[CHAIN_KERNEL]["rows"]
    if ours == "few":
        assert calls > 5
        assert rows == 2 * calls  # one token at a time, two experts
    else:
        assert calls == 1
        assert rows > 2 * 120  # the prompt, all at once


@pytest.mark.parametrize(("layout", "readable"), [("packed", False), ("native", True)])
def test_only_blocks_in_place_can_be_read_by_stock(here, layout, readable):
    # Otherwise the scheduler copies the weight for every batch that the backend turns down.
    code = """
import ctypes
from llama_octet.bench.ggml import Ggml
g = Ggml(llama_octet.load().package)
is_host = g.lib.ggml_backend_buft_is_host
is_host.restype, is_host.argtypes = ctypes.c_bool, [ctypes.c_void_p]
print(json.dumps(is_host(g.backend_dev_buffer_type(g.backend_dev_by_name(b"OCTET")))))
"""
    assert ran(here(code, OCTET_LAYOUT=layout)) is readable


def test_dense_codebook_weights_are_ours_only_if_measured(here, tmp_path):
    model = random_dense(tmp_path / "q4_0.gguf", layers=1, kind="q4_0")
    only = {"OCTET_INCLUDE": "*ffn_gate*,*ffn_up*"}
    failing = NEVER.replace('raise AssertionError("measured again")', 'return {}, "not now"')
    assert ran(here(failing + LOAD + ANSWER, model, **only)) == [{}, []]
    kernels, held = followed(here, model, [2] * 7, "dense q4_0 512x256", **only)
    assert kernels["dense q4_0"]["calls"] > 0
    assert set(held) == {"blk.0.ffn_gate.weight", "blk.0.ffn_up.weight"}


PLAIN = LOAD.replace("llama_octet.Llama", "__import__('llama_cpp').Llama")


@pytest.mark.parametrize(
    ("label", "ratio", "runs"),
    [
        (DENSE, 2, True),  # nothing is known of the experts: the default
        (CHAIN, 2, True),
        (CHAIN, 0.5, False),
        ("chain q8_0:q8_0 256x512", 0.5, True),  # of another layer
    ],
)
def test_plain_llama_cpp_follows_what_is_kept_and_measures_nothing(here, moe, label, ratio, runs):
    # It names no threads: those of the machine. It names no file: a chain is known by its weights.
    keep = f"keep({label!r}, {timings(*[ratio] * 7)!r}, len(os.sched_getaffinity(0)))\n"
    done = here(NEVER + keep + PLAIN + ANSWER, moe, **EXPERTS_ONLY)
    kernels, kept = ran(done)
    assert bool(kernels) is runs
    assert [entry["label"] for entry in kept] == [label]
    assert lines_about(done, "timing") == []


def test_a_named_model_is_known_by_its_file(here, moe):
    code = """
decision = library.decide("blk.0.ffn_down_exps.weight", "q8_0", (256, 256, 8))
print(json.dumps(decision["label"]))
"""
    assert ran(here(code, OCTET_MODEL=moe)) == CHAIN
    assert ran(here(code)) == "experts q8_0 256x256"


# ---- the command


def test_doctor_shows_and_remeasures(here, folder):
    threads = "len(os.sched_getaffinity(0))"
    ran(here(f"print(json.dumps(keep({DENSE!r}, {timings(*FALLING)!r}, {threads})))"))
    ran(here(f"print(json.dumps(keep({CHAIN!r}, {timings(*FALLING)!r})))", OCTET_LAYOUT="native"))
    code = PATIENT + "from llama_octet import cli\nsys.exit(cli.main(sys.argv[1:]))"
    shown = here(code, "doctor", OCTET_LAYOUT="packed").stdout
    assert f"{DENSE}, " in shown
    assert "ours below 44.5 rows, stock above" in shown
    assert "1 of another machine, version or setting" in shown

    done = here(code, "doctor", "--remeasure", "--json", OCTET_LAYOUT="packed")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    (entry,) = found["crossovers"]
    assert entry["label"] == DENSE
    assert [rows for rows, *_ in entry["samples"]] == list(ROWS)
    assert entry["samples"] != timings(*FALLING)
    assert found["other_crossovers"] == 1
    again = json.loads(here(code, "doctor", "--json", OCTET_LAYOUT="packed").stdout)
    assert again["crossovers"] == [entry]
    assert len(list(folder.glob("crossover-*.txt"))) == 2
