"""The environment switches: each refuses junk in one line that says what it takes."""

import json

import pytest
from llama_octet import switches
from models import random_dense
from octet_helpers import REPOSITORY, complaint

JUNK = [
    ("OCTET_W8A8", "2"),
    ("OCTET_W8A8", "on"),
    ("OCTET_MOE", "banana"),
    ("OCTET_QUANTIZE", "yes"),
    ("OCTET_QUANTIZE", "auto"),
    ("OCTET_ISA", "mmx"),
    ("OCTET_ISA", "AVX2"),
    ("OCTET_LAYOUT", "both"),
    ("OCTET_MIN_K", "-1"),
    ("OCTET_MIN_K", "1e3"),
    ("OCTET_MIN_K", "99999999999999999999999"),
    ("OCTET_SKIP_ROWS", "many"),
    ("OCTET_SKIP_ROWS", "12x"),
    ("OCTET_VERBOSE", "loud"),
    ("OCTET_VERBOSE", "01"),
    ("OCTET_DENSE", "-1"),
    ("OCTET_SYCL", "on"),
    ("OCTET_SYCL_FORCE", "1"),
    ("OCTET_SYCL_MT", "3"),
    ("OCTET_SYCL_WG", "auto"),
    ("OCTET_SYCL_GRF", "64"),
    ("OCTET_SYCL_GRF", "auto"),
    ("OCTET_SYCL_DEVICE", "gpu"),
]
LOAD = """
import sys
import llama_octet
try:
    llama_octet.load()
except llama_octet.OctetError as why:
    sys.exit(f"octet: {why}")
"""


@pytest.mark.parametrize(("name", "value"), JUNK)
def test_junk_is_refused_with_what_is_accepted(program, name, value):
    text = complaint(program(LOAD, **{name: value}))
    assert name in text
    assert value in text
    accepted = switches.BACKEND[name]
    if name == "OCTET_ISA":  # only what this machine has is offered
        assert "auto" in text
        assert "scalar" in text
    elif isinstance(accepted, tuple):
        for word in accepted:
            assert word in text


@pytest.mark.parametrize(("name", "value"), JUNK)
def test_the_table_calls_the_same_values_junk(name, value):
    assert switches.is_junk(name, value)


def test_a_misspelt_switch_is_refused(program):
    assert "OCTET_MOEE" in complaint(program(LOAD, OCTET_MOEE="1"))


def test_empty_is_the_default(program):
    code = LOAD + "print(sorted(llama_octet.status()['settings'].items()))"
    empty = program(code, **dict.fromkeys(switches.BACKEND, ""))
    unset = program(code)
    assert unset.returncode == 0, unset.stderr
    assert empty.stdout == unset.stdout


ACCEPTED = {
    name: values
    for name, values in switches.BACKEND.items()
    if isinstance(values, tuple) and name != "OCTET_ISA"
} | {
    "OCTET_MIN_K": ("0", "64"),
    "OCTET_SKIP_ROWS": ("0", "100000"),
    "OCTET_INCLUDE": ("blk.*", "*"),
    "OCTET_EXCLUDE": ("blk.0.*,output.weight", "none"),
}


@pytest.mark.parametrize("column", range(3))
def test_accepted_values_arrive(program, column):
    chosen = {name: values[column % len(values)] for name, values in ACCEPTED.items()}
    done = program(
        LOAD + "import json\nprint(json.dumps(llama_octet.status()['settings']))", **chosen
    )
    assert done.returncode == 0, done.stderr
    arrived = json.loads(done.stdout)
    assert {name: str(arrived[name]) for name in chosen} == chosen


def test_every_available_instruction_set_can_be_asked_for(program):
    done = program(LOAD + "print(*llama_octet.status()['isas'])")
    for isa in done.stdout.split():
        one = program(LOAD + "print(llama_octet.status()['isa'])", OCTET_ISA=isa)
        assert one.stdout == isa + "\n", one.stderr


def test_an_instruction_set_of_another_machine_is_refused(program):
    import platform

    other = "neon" if platform.machine() == "x86_64" else "avx2"
    text = complaint(program(LOAD, OCTET_ISA=other))
    assert f"OCTET_ISA={other}" in text


def test_command_refuses_junk_in_one_line(octet, tmp_path):
    model = tmp_path / "empty.gguf"
    model.write_bytes(b"GGUF" + (3).to_bytes(4, "little") + bytes(16))
    assert "OCTET_MOE=banana" in complaint(octet("run", model, "-p", "x", OCTET_MOE="banana"))


@pytest.mark.parametrize("name", ["OCTET_INCLUDE", "OCTET_EXCLUDE"])
def test_patterns_that_name_nothing_are_pointed_out(octet, tmp_path, name):
    model = random_dense(tmp_path / "small.gguf", layers=1)
    done = octet("inspect", model, **{name: "*ffn_up*,blk.7.*,output.weight,attn"})
    assert done.returncode == 0
    said = [line for line in done.stderr.splitlines() if name in line]
    assert [line.split()[-1] for line in said] == ["blk.7.*", "attn"]
    assert all(str(model) in line for line in said)


def test_readme_lists_every_switch():
    text = (REPOSITORY / "README.md").read_text()
    for name in [*switches.BACKEND, *switches.PACKAGE]:
        assert f"`{name}`" in text, name
