"""The probe of stock AMX: its verdicts, its memory, and what follows from them."""

import json

import pytest
from llama_octet import amx, amx_child, cache, runtime


@pytest.fixture
def package():
    return runtime.import_llama_cpp()


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("OCTET_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def with_amx(monkeypatch):
    """A machine that has AMX, whatever this one has."""
    monkeypatch.setattr(runtime, "cpu", lambda: ("Some CPU", frozenset({"amx_int8"})))


def child(monkeypatch, tmp_path, code):
    """Let the probe run this program in place of its own."""
    (tmp_path / "amx_child.py").write_text(code)
    monkeypatch.setattr(amx, "__file__", str(tmp_path / "amx.py"))


def test_without_amx_no_child_is_started(package, own_cache, monkeypatch):
    monkeypatch.setattr(runtime, "cpu", lambda: ("Some CPU", frozenset({"avx2"})))
    monkeypatch.setattr(amx, "_ask_child", lambda lib: pytest.fail("a child was started"))
    assert amx.state(package)["state"] == "absent"
    assert not own_cache.exists()


def test_the_real_verdict_agrees_with_the_real_child(package, own_cache):
    # Whatever this machine and this build are: the answer is one of three, and repeatable.
    first = amx.state(package)
    assert first["state"] in ("ok", "broken", "absent")
    assert first["cached"] is False
    assert amx.state(package)["state"] == first["state"]


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("import os, signal\nos.kill(os.getpid(), signal.SIGILL)", "SIGILL"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"),
        ("print('garbage')", "exit code 0"),
        ("raise SystemExit('no such symbol')", "no such symbol"),
        ('print(\'{"state": "broken", "why": "wrong numbers for Q8_0"}\')', "wrong numbers"),
    ],
)
def test_broken(package, own_cache, with_amx, monkeypatch, tmp_path, code, why):
    child(monkeypatch, tmp_path, code)
    found = amx.state(package)
    assert found["state"] == "broken"
    assert why in found["why"]


def test_a_child_that_hangs_counts_as_broken(package, own_cache, with_amx, monkeypatch, tmp_path):
    monkeypatch.setattr(amx, "TIMEOUT", 0.2)
    child(monkeypatch, tmp_path, "import time\ntime.sleep(60)")
    assert amx.state(package)["state"] == "broken"


def test_the_answer_is_kept(package, own_cache, with_amx, monkeypatch, tmp_path):
    child(monkeypatch, tmp_path, 'print(\'{"state": "ok", "why": "a test"}\')')
    assert amx.state(package) == {"state": "ok", "why": "a test", "cached": False}
    child(monkeypatch, tmp_path, "raise SystemExit('asked again')")
    assert amx.state(package) == {"state": "ok", "why": "a test", "cached": True}


def test_another_library_is_asked_again(package, own_cache, with_amx, monkeypatch, tmp_path):
    child(monkeypatch, tmp_path, 'print(\'{"state": "ok", "why": "a test"}\')')
    amx.state(package)
    other = tmp_path / "libggml-cpu.so.0"
    other.write_bytes(b"another")
    with monkeypatch.context() as there:
        there.setattr(runtime, "mapped", lambda name: other)
        assert amx.state(package)["cached"] is False
        assert amx.state(package)["cached"] is True
    # Two virtual environments that take turns do not forget each other's answers.
    assert amx.state(package)["cached"] is True


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"key": 1}', "\x00\xff"])
def test_a_corrupt_cache_is_measured_again(
    package, own_cache, with_amx, monkeypatch, tmp_path, content
):
    child(monkeypatch, tmp_path, 'print(\'{"state": "ok", "why": "a test"}\')')
    own_cache.mkdir()
    kept = own_cache / amx.cache_file(runtime.mapped("libggml-cpu"))
    kept.write_bytes(content.encode("latin-1"))
    assert amx.state(package) == {"state": "ok", "why": "a test", "cached": False}
    assert json.loads(kept.read_text())["state"] == "ok"


def test_an_unwritable_cache_is_no_failure(package, with_amx, monkeypatch, tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    monkeypatch.setenv("OCTET_CACHE_DIR", str(file))
    child(monkeypatch, tmp_path, 'print(\'{"state": "ok", "why": "a test"}\')')
    assert amx.state(package)["state"] == "ok"
    assert cache.write("x", {}) is False


# The comparison itself, with stock's ordinary path on both sides: it must call right right, and
# wrong wrong.

COMPARE = """
import json, sys
sys.path.insert(0, sys.argv[1])
import amx_child
amx_child.amx_buffer_type = lambda lib, device: lib.ggml_backend_dev_buffer_type(device)
if sys.argv[3] == "spoilt":
    good, calls = amx_child.product, []
    def spoil(*arguments):
        calls.append(1)
        out = good(*arguments)
        return [-v for v in out] if len(calls) % 2 else out
    amx_child.product = spoil
print(json.dumps(amx_child.probe(sys.argv[2])))
"""


@pytest.mark.parametrize(("how", "state"), [("right", "ok"), ("spoilt", "broken")])
def test_the_comparison(program, package, how, state):
    folder = str(amx.Path(amx_child.__file__).parent)
    done = program(COMPARE, folder, runtime.shared_library(package)._name, how)
    assert json.loads(done.stdout)["state"] == state, done.stderr


def test_nan_is_far_from_everything():
    assert amx_child.difference([float("nan"), 1.0], [1.0, 1.0]) > amx_child.TOLERANCE
    assert amx_child.difference([float("inf"), 1.0], [1.0, 1.0]) > amx_child.TOLERANCE
    assert amx_child.difference([1.0, 1.0], [1.0, 1.0]) == 0


def test_avoiding_reaches_plain_llama_cpp_once(program):
    code = """
import llama_cpp
from llama_octet import amx
before = llama_cpp.llama_cpp.llama_model_default_params
assert before().use_extra_bufts is True
amx.avoid(llama_cpp)
once = llama_cpp.llama_cpp.llama_model_default_params
amx.avoid(llama_cpp)
assert llama_cpp.llama_cpp.llama_model_default_params is once
assert llama_cpp.llama_model_default_params is once
print(once().use_extra_bufts)
"""
    done = program(code)
    assert done.stdout == "False\n", done.stderr


@pytest.mark.parametrize(("state", "extra"), [("broken", False), ("ok", True), ("absent", True)])
def test_what_follows_from_the_verdict(program, state, extra):
    code = f"""
import llama_octet
from llama_octet import amx
amx.state = lambda package: {{"state": {state!r}, "why": "a test", "cached": False}}
package = llama_octet.load().package
print(package.llama_cpp.llama_model_default_params().use_extra_bufts,
      llama_octet.status()["runtime"]["stock_amx"]["state"])
"""
    assert program(code).stdout == f"{extra} {state}\n"


def test_doctor_says_what_to_do(program):
    code = """
import sys
from llama_octet import amx, cli
amx.state = lambda package: {"state": "broken", "why": "a test", "cached": False}
sys.exit(cli.main(["doctor"]))
"""
    done = program(code)
    assert done.returncode == 0, done.stderr
    advice = [line for line in done.stdout.splitlines() if line.startswith("advice: ")]
    assert any("use_extra_bufts=False" in line and "clang" in line for line in advice)


def test_the_machine_survives(program, smollm2):
    # The point of it all: a prompt in Q4_1 must not end the process, with or without working AMX.
    code = """
import sys, llama_octet
llama_octet.load()
import llama_cpp
llm = llama_cpp.Llama(sys.argv[1], verbose=False, n_ctx=256)
print(llm("The opposite of hot is", max_tokens=3, temperature=0)["choices"][0]["text"])
"""
    done = program(code, smollm2)
    assert done.returncode == 0, (done.returncode, done.stderr)
    assert "cold" in done.stdout
