"""The `octet` command: help, exit codes, errors in one line, nothing but JSON with --json."""

import json
import os
import signal
import subprocess
import sys
import time

import llama_octet
import pytest
from llama_octet.cli import COMMANDS
from models import random_dense
from octet_helpers import clean_environment, complaint, with_path


def test_version(octet):
    done = octet("--version")
    assert (done.returncode, done.stdout) == (0, f"octet {llama_octet.__version__}\n")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example_and_json(octet, command):
    done = octet(command, "--help")
    assert done.returncode == 0
    assert f"example: octet {command}" in done.stdout
    assert "--json" in done.stdout


@pytest.fixture
def modules_after_help(program):
    """The modules that are loaded after `octet COMMAND --help`."""

    def run(command):
        code = """
import sys
from llama_octet import cli
try:
    cli.main([sys.argv[1], "--help"])
except SystemExit:
    pass
print(*sys.modules)
"""
        return program(code, command).stdout.splitlines()[-1].split()

    return run


def test_help_does_not_load_the_runtime(modules_after_help):
    found = modules_after_help("run")
    assert "llama_octet.commands.run" in found
    assert "llama_cpp" not in found


def test_a_command_imports_no_other(modules_after_help):
    found = [m for m in modules_after_help("doctor") if m.startswith("llama_octet.commands.")]
    assert found == ["llama_octet.commands.doctor"]


def test_run_reads_the_header_once(program, tmp_path):
    code = """
import sys
from llama_octet import cli, header
read, paths = header.read, []
header.read = lambda path: paths.append(path) or read(path)
cli.main(["run", sys.argv[1], "-p", "x", "-n", "1", "--json"])
print(len(paths))
"""
    assert program(code, random_dense(tmp_path / "m.gguf")).stdout.splitlines()[-1] == "1"


def test_the_overview_names_every_command(octet):
    first = [line.split()[:1] for line in octet("--help").stdout.splitlines()]
    assert [name for name in COMMANDS if [name] not in first] == []


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["fly"],
        ["run"],
        ["run", "m.gguf"],
        ["run", "m.gguf", "-p", ""],
        ["run", "m.gguf", "-p", "x", "-n", "0"],
        ["run", "m.gguf", "-p", "x", "-n", "-5"],
        ["run", "m.gguf", "-p", "x", "-n", "ten"],
        ["run", "m.gguf", "-p", "x", "-n", "99999999999"],
        ["run", "m.gguf", "-p", "x", "--threads", "0"],
        ["run", "m.gguf", "-p", "x", "--ctx", "-1"],
        ["run", "m.gguf", "-p", "x", "--temp", "hot"],
        ["run", "m.gguf", "-p", "x", "--temp", "nan"],
        ["run", "m.gguf", "-p", "x", "--temp", "-1"],
        ["run", "m.gguf", "-p", "x", "--seed", "x"],
        ["run", "m.gguf", "-p", "x", "--loud"],
        ["doctor", "now"],
    ],
)
def test_wrong_usage_is_one_line_and_2(octet, arguments):
    done = octet(*arguments)
    complaint(done)
    assert done.returncode == 2


def test_missing_model(octet, tmp_path):
    done = octet("run", tmp_path / "none.gguf", "-p", "x")
    assert "none.gguf" in complaint(done)
    assert done.returncode == 1


def test_debug_shows_where(octet, tmp_path):
    done = octet("run", tmp_path / "none.gguf", "-p", "x", OCTET_DEBUG=1)
    assert "Traceback" in done.stderr
    assert done.returncode == 1


def test_run_streams_text_and_reports_on_stderr(octet, smollm2):
    done = octet("run", smollm2, "-p", "The opposite of hot is", "-n", 4)
    assert done.returncode == 0, done.stderr
    assert "cold" in done.stdout
    assert "tokens/s" in done.stderr
    assert "tokens/s" not in done.stdout


def test_run_json(octet, smollm2):
    done = octet("run", smollm2, "-p", "The opposite of hot is", "-n", 4, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    wanted = {"model", "prompt", "text", "tokens", "prompt_tokens", "prompt_tps", "gen_tps"}
    assert wanted | {"load_s", "peak_rss_mib", "status"} <= result.keys()
    assert result["prompt"] == "The opposite of hot is"
    assert len(result["tokens"]) == 4
    assert result["prompt_tokens"] == 5
    assert result["prompt_tps"] > 0
    assert result["gen_tps"] > 0
    assert 50 < result["peak_rss_mib"] < 2000
    assert result["status"]["loaded"] is True


def test_one_token_has_no_generation_speed(octet_json, smollm2):
    result = octet_json("run", smollm2, "-p", "The opposite of hot is", "-n", 1)
    assert len(result["tokens"]) == 1
    assert result["gen_tps"] is None


def test_temperature_obeys_the_seed(octet_json, smollm2):
    def tokens(seed):
        return octet_json("run", smollm2, "-p", "Once", "-n", 8, "--temp", 1.5, "--seed", seed)[
            "tokens"
        ]

    assert tokens(1) == tokens(1)
    assert tokens(1) != tokens(2)


def test_prompt_longer_than_the_context(octet, smollm2):
    done = octet("run", smollm2, "-p", "one two three " * 200, "--ctx", 256)
    lines = done.stderr.splitlines()
    assert done.returncode == 2
    assert done.stdout == ""
    assert "--ctx" in lines[-1]
    assert "Traceback" not in done.stderr


def test_a_full_context_ends_the_text(octet_json, smollm2):
    result = octet_json("run", smollm2, "-p", "one two three " * 80, "-n", 5000, "--ctx", 256)
    assert 240 <= result["prompt_tokens"] < 256
    assert 1 <= len(result["tokens"]) <= 256 - result["prompt_tokens"]


def test_text_is_whole_where_a_character_takes_several_tokens(octet_json, smollm2):
    result = octet_json("run", smollm2, "-p", "😀" * 14, "-n", 8)
    assert "😀" in result["text"]


def test_undecodable_argument(smollm2, cache):
    done = subprocess.run(
        [sys.executable, "-m", "llama_octet", "run", smollm2, "-p", b"caf\xe9", "-n", "2"],
        capture_output=True,
        env=clean_environment(OCTET_CACHE_DIR=cache),
        timeout=100,
        check=False,
    )
    assert b"Traceback" not in done.stderr
    assert done.returncode == 0, done.stderr


def test_reader_that_leaves_is_no_error(smollm2, cache):
    done = subprocess.run(
        ["bash", "-c", f"'{sys.executable}' -m llama_octet doctor | true; exit ${{PIPESTATUS[0]}}"],
        capture_output=True,
        text=True,
        env=clean_environment(OCTET_CACHE_DIR=cache),
        timeout=100,
        check=False,
    )
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr
    assert done.returncode in (0, 141)


def test_interrupt_is_one_line_and_130(smollm2, cache):
    child = subprocess.Popen(
        [sys.executable, "-m", "llama_octet", "run", smollm2, "-p", "Count: 1 2 3", "-n", "2000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=clean_environment(OCTET_CACHE_DIR=cache, PYTHONUNBUFFERED=1),
    )
    os.read(child.stdout.fileno(), 1)  # it has begun to write
    time.sleep(0.2)
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=60)
    assert child.returncode == 130
    assert said.splitlines()[-1] == "octet: interrupted"
    assert "Traceback" not in said


# ---- doctor ----


def test_doctor(octet_json):
    found = octet_json("doctor")
    assert found["loaded"] is True
    assert found["problems"] == []
    assert found["llama_cpp_python"]["imported"] in found["llama_cpp_python"]["supported"]
    assert found["ggml"]["version"] == "0.25.3"
    assert found["isa"] in found["isas"]
    assert found["stock_amx"]["state"] in ("ok", "broken", "absent")
    assert [row["name"] for row in found["switches"]] == ["OCTET_CACHE_DIR"]
    assert isinstance(found["gpu"], str) and found["gpu"]


def test_doctor_text(octet):
    done = octet("doctor")
    assert done.returncode == 0
    for word in ("llama-cpp-python", "0.3.36", "ggml", "instruction sets", "stock AMX", "cache"):
        assert word in done.stdout


def test_doctor_finds_junk(octet):
    done = octet("doctor", "--json", OCTET_MOE="banana", OCTET_LAYOUT="both")
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert found["loaded"] is False
    assert len(found["problems"]) == 1
    # The backend stops at the first; doctor names them all.
    said = " ".join(found["problems"] + found["advice"])
    assert "OCTET_MOE=banana" in said
    assert "OCTET_LAYOUT=both" in said


def test_doctor_with_an_unwritable_cache(octet_json, tmp_path):
    file = tmp_path / "a file, not a folder"
    file.write_text("")
    found = octet_json("doctor", OCTET_CACHE_DIR=file)
    assert found["cache"]["writable"] is False
    assert any("OCTET_CACHE_DIR" in text for text in found["advice"])


def test_doctor_with_another_llama_cpp(octet, tmp_path):
    (tmp_path / "llama_cpp").mkdir()
    (tmp_path / "llama_cpp" / "__init__.py").write_text("__version__ = '0.3.26'\n")
    done = octet("doctor", "--json", PYTHONPATH=with_path(tmp_path))
    assert done.returncode == 1
    assert any("0.3.26" in text for text in json.loads(done.stdout)["problems"])
