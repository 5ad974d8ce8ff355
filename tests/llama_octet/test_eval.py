"""`octet eval` on small random models: what is measured, and what is refused."""

import argparse
import json
import math
import tempfile
import types

import models
import numpy as np
import pytest
from llama_octet import eval_store
from llama_octet.commands import eval as command
from llama_octet.errors import OctetError
from llama_octet.eval_runs import parse_spec
from octet_helpers import complaint

TEXT = "The river begins on a hill, and the water that falls there finds the lowest way. " * 8
QUESTIONS = [
    # " A" and " B" would begin with the same byte, and bytes are all these models know.
    {"prompt": f"{n} + 1 is\n(A) {n}\n(B) {n + 1}\n", "options": ["A", "B"], "input_label": 1}
    for n in range(4)
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("eval")


@pytest.fixture(scope="module")
def control(folder):
    return models.random_dense(folder / "dense.gguf", layers=1)


@pytest.fixture(scope="module")
def text(folder):
    path = folder / "text.txt"
    path.write_text(TEXT)
    return path


@pytest.fixture(scope="module")
def questions(folder):
    path = folder / "questions.json"
    path.write_text(json.dumps({"samples": QUESTIONS}))
    return path


def test_everything_at_once(octet_json, convert, control, text, questions, tmp_path):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("Once upon a time\nThe sun rises\n")
    rotated, plain = convert(control), convert(control, "--rotate", "0")
    result = octet_json(
        *("eval", control, rotated, f"{plain}@stock", f"{rotated}@OCTET_W8A8=0"),
        *("--text", text, "--positions", 100, "--chunk", 40),
        *("--mmlu", questions, "--prompts", prompts, "--continue", 8),
        *("--report", tmp_path / "report", "--threads", 1, "--repeats", 2, "--layers", text),
    )
    itself, ours, stock, floats = result["candidates"]
    assert result["control"] == itself["file"] == str(control)
    assert ours["file"] == str(rotated)

    zero = dict.fromkeys(("mean", "median", "p95", "p99", "max"), 0)
    assert itself["kl"] == {**zero, "mean_interval": [0, 0]}
    assert (itself["top1"], itself["ppl_ratio"], itself["first_token_kl"]) == (1, 1, 0)
    assert itself["mmlu"]["answer_changes"] == itself["mmlu"]["kl_mean"] == 0
    assert (itself["runtime"], itself["kernels"]) == ("stock", {})

    assert ours["kernels"]
    assert ours["runtime"] == floats["runtime"] == "plugin"
    assert stock["runtime"] == "stock"
    for one in result["candidates"]:
        assert one["positions"] == 100 + 2 * 8
        assert one["prompt_tps"] > 0 and one["gen_tps"] > 0 and one["wall_s"] > 0
        assert one["peak_rss_mib"] > 20
        assert one["prompt_tps_interval"] is one["gen_tps_interval"] is None  # of so few
        assert one["mmlu"]["n"] == 4
        assert 0 <= one["mmlu"]["accuracy"] <= 1
    for one in (ours, stock, floats):
        kl = one["kl"]
        low, high = kl["mean_interval"]
        assert 0 < low < kl["mean"] < high
        assert 0 < kl["median"] <= kl["p95"] <= kl["p99"] <= kl["max"] < 1
        assert 0.5 < one["top1"] <= 1
        assert one["ppl_ratio"] == pytest.approx(1, abs=0.1)
        assert 0 < one["first_token_kl"] <= kl["max"]
    # Only the weights were rounded here, there the activations too.
    assert floats["kl"]["mean"] < ours["kl"]["mean"]

    # Each product alone: rounding inputs too costs more than rounding the weights only, and the
    # rotation costs less than none.
    assert itself["layers"] is None
    alone = [{o["name"]: o["error"] for o in one["layers"]} for one in (ours, stock, floats)]
    assert all("blk.0.ffn_down.weight" in one and len(one) == 7 for one in alone)
    for name, error in alone[0].items():
        assert 0 < alone[2][name] < error < 0.05

    page = (tmp_path / "report" / "eval.html").read_text()
    assert page.count("<svg") == 4 and "blk.0.ffn_down.weight" in page
    assert "<svg" in page and str(rotated) in page and "http" not in page
    kept = json.loads((tmp_path / "report" / "eval.json").read_text())
    assert kept["candidates"][1]["kl"] == ours["kl"]
    assert len(kept["candidates"][1]["quantiles"]) == 201


def test_experts_against_their_own_integers(octet_json, convert, folder, text, tmp_path):
    source = models.random_moe(folder / "moe.gguf", layers=1)
    codebook = convert(source, "--int8", "none", "--experts", "iq3_s:iq4_nl")
    floats = models.make_float_experts(codebook, tmp_path / "floats.gguf")
    rotated = convert(source, "--int8", "*_exps*")
    exact = models.make_float_experts(rotated, tmp_path / "exact.gguf")
    for control, candidates in (
        (floats, [f"{codebook}@OCTET_MOE=1", f"{codebook}@stock"]),
        (exact, [rotated, f"{rotated}@OCTET_W8A8=0"]),
    ):
        result = octet_json(
            *("eval", control, *candidates, "--text", text, "--positions", 60, "--threads", 1)
        )
        _, ours, other = result["candidates"]
        assert ours["kernels"]
        assert ours["kl"]["mean"] < 0.01
        assert other["kl"]["mean"] < 0.01
    # The float products of the same integers are the same but for the order of additions.
    assert other["kl"]["mean"] < 1e-6


def test_a_table_for_people(octet, control, questions):
    done = octet("eval", control, "--mmlu", questions, "--threads", 1)
    assert done.returncode == 0, done.stderr
    head, row, note = done.stdout.splitlines()
    assert head.split()[:3] == ["model", "KL", "mean"]
    assert row.split()[:3] == [str(control), "0", "0"]
    assert note.startswith("4 positions; ") and "4 questions" in note


def test_refusals(octet, convert, control, text, folder, tmp_path):
    rotated = convert(control)
    other = models.random_dense(folder / "other.gguf", layers=1, vocab=320)
    bad = tmp_path / "bad.json"
    bad.write_text('{"samples": 1}')
    for code, said, arguments in (
        (2, "nothing to compare on", [control]),
        (2, "@nonsense is none of", [f"{control}@stock@nonsense", "--text", text]),
        (2, "OCTET_MOE takes auto, 0, 1", [control, f"{rotated}@OCTET_MOE=7", "--text", text]),
        (2, "does not know OCTET_MOE", [f"{control}@OCTET_MOE=1", "--text", text]),
        (2, "add @plugin", [rotated, "--text", text]),
        (2, "at least two more", [control, "--text", text, "--chunk", 9, "--skip", 8]),
        (2, "too short", [control, "--text", text, "--chunk", 1000, "--skip", 900]),
        (2, "samples", [control, "--mmlu", bad]),
        (1, "missing.gguf", [control, folder / "missing.gguf", "--text", text]),
        (1, "another vocabulary", [control, f"{other}@stock", "--text", text, "--positions", 9]),
    ):
        done = octet("eval", *arguments, "--threads", 1)
        assert said in complaint(done), arguments
        assert done.returncode == code, done.stderr


def test_a_child_that_fails_says_why(octet, control, text):
    # An instruction set of another machine: the plugin refuses to load.
    candidate = f"{control}@OCTET_ISA=neon"
    done = octet("eval", control, candidate, "--text", text, "--positions", 9, "--threads", 1)
    assert done.returncode == 1
    assert "OCTET_ISA" in complaint(done)


def test_settings_after_a_files_name(tmp_path):
    spec = parse_spec("some.gguf@OCTET_W8A8=0@OCTET_INCLUDE=a,b", stock=False)
    assert (spec.path, spec.stock) == ("some.gguf", False)
    assert spec.environment == {"OCTET_W8A8": "0", "OCTET_INCLUDE": "a,b"}
    assert parse_spec("some.gguf", stock=True).stock
    assert not parse_spec("some.gguf@plugin", stock=True).stock
    assert parse_spec("a@b.gguf@stock", stock=False).path == "a@b.gguf"
    odd = tmp_path / "a@stock"
    odd.touch()
    assert parse_spec(f"{odd}@plugin", stock=True).path == str(odd)
    assert not parse_spec(str(odd), stock=False).stock


def test_a_disk_or_a_memory_without_room(monkeypatch, tmp_path):
    room = eval_store._SPARE + 1000
    monkeypatch.setattr(
        eval_store.shutil, "disk_usage", lambda folder: types.SimpleNamespace(free=room)
    )
    with eval_store.Log(tmp_path / "some") as log:
        log.append(bytes(1000))
        with pytest.raises(OctetError, match="TMPDIR"):
            log.append(bytes(1001))
    eval_store.check_memory("a.gguf", 1 << 20)
    with pytest.raises(OctetError, match=r"a\.gguf: needs about"):
        eval_store.check_memory("a.gguf", 1 << 60)


def test_logits_come_back_to_the_last_bit(tmp_path):
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((3, 1000)).astype(np.float32)
    rows[0, :6] = -0.0, np.inf, -np.inf, 1e-42, 3e38, 0
    with eval_store.Log(tmp_path / "some") as log:
        eval_store.append_logits(log, rows)
        assert log.file.tell() < 0.95 * rows.nbytes
        log.file.seek(0)
        back = np.empty_like(rows)
        eval_store.read_logits(log, back)
        assert back.tobytes() == rows.tobytes()
        assert log.file.read() == b""


def test_a_log_goes_on_where_it_was_saved(tmp_path):
    with eval_store.Log(tmp_path / "some") as log:
        for part, answer in ((b"one", None), (b"three", 3), (b"six", None)):
            log.append(part)
            log.finish(answer)
        log.append(b"half of the nex")
    with eval_store.Log(tmp_path / "some") as log:
        assert (log.ends, log.answers) == ([3, 8, 11], [None, 3, None])
        log.restart(2)
        log.append(b"!")
        log.finish(7)
    with eval_store.Log(tmp_path / "some") as log:
        assert (log.ends, log.answers) == ([3, 8, 9], [None, 3, 7])
        assert log.file.read() == b"onethree!"


def _without_times(result):
    timed = ("_tps", "_interval", "rss_mib", "wall_s", "load_s")
    return [{k: v for k, v in one.items() if not k.endswith(timed)} for one in result["candidates"]]


@pytest.mark.parametrize("stopped_in", ["reference", "candidate"])
def test_interrupted_and_gone_on_with(stopped_in, control, questions, text, tmp_path, monkeypatch):
    """The same results as without a stop, from a run that does not begin again."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(eval_store, "_SAVE_SECONDS", 0)
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    args = parser.parse_args(
        [
            *(str(control), "--text", str(text), "--mmlu", str(questions), "--positions", "100"),
            *("--chunk", "20", "--threads", "1", "--repeats", "1"),
        ]
    )
    finish, passes = eval_store.Log.finish, []

    def counted(log, answer):
        passes.append(log.path.stem == "reference")
        finish(log, answer)
        if len(passes) == stop_after:
            raise KeyboardInterrupt

    monkeypatch.setattr(eval_store.Log, "finish", counted)
    stop_after = 0
    wanted = command.run(args)
    items = passes.count(True)
    assert list(tmp_path.iterdir()) == []  # nothing is left behind

    passes.clear()
    stop_after = 3 if stopped_in == "reference" else items + 3
    with pytest.raises(command.Interrupted, match="the same command goes on") as stopped:
        command.run(args)
    assert stopped.value.exit_code == 130 and str(tmp_path) in str(stopped.value)
    passes.clear()
    stop_after = 0
    assert _without_times(command.run(args)) == _without_times(wanted)
    # Three items are not done again.
    left = (items - 3, items) if stopped_in == "reference" else (0, items - 3)
    assert (passes.count(True), passes.count(False)) == left
    assert list(tmp_path.iterdir()) == []


def test_a_control_that_disagrees_with_itself():
    control = parse_spec("some.gguf", stock=True)
    command._check_control({"kl": {"max": 0.0}, "top1": 1.0}, control)
    for kl, top1 in ((1e-12, 1.0), (0.0, 0.99), (math.nan, 1.0)):
        with pytest.raises(OctetError, match=r"some\.gguf: disagrees with itself"):
            command._check_control({"kl": {"max": kl}, "top1": top1}, control)
