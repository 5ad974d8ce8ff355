"""`octet doctor`: what is installed, what is on, what is wrong, and what to do about it."""

import importlib.metadata
import os
import platform
import sys
from pathlib import Path

from .. import (
    __version__,
    amx,
    cache,
    crossover,
    gpu,
    gpu_report,
    library,
    registration,
    runtime,
    switches,
)
from ..errors import OctetError

HELP = "Check the installation: versions, instruction sets, switches, what is wrong and what to do."
EXAMPLE = "octet doctor"


def add_arguments(parser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "--remeasure",
        action="store_true",
        help="time again what auto follows on this machine: every kind of layer shown",
    )
    parser.add_argument(
        "--gpu-report",
        metavar="FILE",
        help="parity, crossover and benchmark of the GPU (minutes), into FILE to be sent back",
    )


def run(args) -> dict:
    """Everything there is to know, as a dictionary; "problems" and "advice" are sentences."""
    if args.gpu_report:
        path = Path(args.gpu_report)
        quick = os.environ.get("OCTET_TEST_GPU_REPORT") == "quick"
        return {"gpu_report": gpu_report.make(path, quick), "file": str(path)}
    problems, advice = [], []
    cpu, _ = runtime.cpu()
    result = {
        "llama_octet": __version__,
        "library": str(library.path()),
        "python": platform.python_version(),
        "executable": sys.executable,
        "system": platform.platform(),
        "llama_cpp_python": {
            "installed": _installed(),
            "supported": list(runtime.SUPPORTED),
        },
        "cpu": cpu,
        "threads": len(os.sched_getaffinity(0)),
        "switches": switches.survey(),
        "cache": _cache(),
        "gpu": _gpu(),
    }
    try:
        package = runtime.import_llama_cpp()
        lib = runtime.shared_library(package)
        version, commit = runtime.ggml_version(lib)
        result["llama_cpp_python"]["imported"] = package.__version__
        result["ggml"] = {
            "version": version,
            "commit": commit,
            "libllama": lib._name,
            "libggml": str(runtime.mapped("libggml-base") or ""),
        }
        result["stock_amx"] = amx.protect(package)
        registration.load()
        backend = registration.status()
        result["isa"] = backend.get("isa")
        result["isas"] = backend.get("isas", [])
        result["settings"] = backend.get("settings", {})
        if backend.get("gpus"):
            result["gpu"] = "; ".join(_gpu_line(device) for device in backend["gpus"])
        opened = registration.load().library
        if args.remeasure:
            for label, why in crossover.remeasure(opened).items():
                problems.append(f"timing {label} failed: {why}")
        entries = opened.crossovers()["entries"]
        result["crossovers"] = [e for e in entries if e["current"]]
        result["other_crossovers"] = len(entries) - len(result["crossovers"])
    except OctetError as why:
        problems.append(str(why))
    result["loaded"] = "isa" in result

    for row in result["switches"]:
        # One that keeps the backend from loading is in the problems, in the backend's words.
        if row["wrong"] and not any(row["name"] in text for text in problems):
            advice.append(f"{row['name']}={row['value']}: {row['wrong']}")
    if result.get("stock_amx", {}).get("state") == "broken":
        advice.append(
            "stock AMX is broken in the installed llama-cpp-python "
            f"({result['stock_amx']['why']}); models are loaded with use_extra_bufts=False, so "
            "stock's AMX and repacked products are off and what stock runs is slower; a build "
            "with clang cures it: CC=clang CXX=clang++ pip install --force-reinstall "
            f"--no-cache-dir --no-binary llama-cpp-python llama-cpp-python=={runtime.SUPPORTED[-1]}"
        )
    if not result["cache"]["writable"]:
        advice.append(
            f"{result['cache']['path']} cannot be written: measurements are repeated in every "
            "process (set OCTET_CACHE_DIR)"
        )
    result["problems"], result["advice"] = problems, advice
    return result


def exit_code(result: dict) -> int:
    """1 if something failed; advice alone is no failure."""
    if "gpu_report" in result:
        return 0 if gpu_report.clean(result["gpu_report"]) else 1
    return 1 if result["problems"] else 0


def render(result: dict) -> str:
    """For reading."""
    if "gpu_report" in result:
        return gpu_report.summary(result["gpu_report"], Path(result["file"]))
    of = result["llama_cpp_python"]
    found = of.get("imported") or of["installed"] or "not installed"
    good = "supported" if found in of["supported"] else "NOT supported"
    rows = [
        ("llama-octet", result["llama_octet"]),
        ("library", result["library"]),
        ("python", f"{result['python']}  {result['executable']}"),
        ("llama-cpp-python", f"{found}, {good} (supported: {', '.join(of['supported'])})"),
    ]
    if "ggml" in result:
        ggml = result["ggml"]
        rows += [
            ("ggml", f"{ggml['version']} (commit {ggml['commit']})"),
            ("libggml", ggml["libggml"]),
        ]
    rows.append(("cpu", f"{result['cpu']}, {result['threads']} threads"))
    if result.get("isas"):
        rows.append(("instruction sets", f"{', '.join(result['isas'])}; in use: {result['isa']}"))
    if "stock_amx" in result:
        stock = result["stock_amx"]
        rows.append(("stock AMX", f"{stock['state']}: {stock['why']}"))
    if result["switches"]:
        shown = [f"{row['name']}={row['value']}" for row in result["switches"]]
        rows.append(("switches set", " ".join(shown)))
    else:
        rows.append(("switches set", "none"))
    rows += [
        ("cache", result["cache"]["path"]),
        ("gpu", result["gpu"]),
    ]
    if "crossovers" in result:
        rows.append(("auto follows", _crossovers(result)))
    lines = [f"{name:<17} {value}" for name, value in rows]
    for entry in sorted(result.get("crossovers", []), key=lambda e: (e["label"], e["threads"])):
        samples = (f"{rows:g}: {stock / ours:.2f}" for rows, ours, stock in entry["samples"])
        lines += [
            f"  {entry['label']}, {entry['layout']}, {entry['threads']} threads: "
            f"{entry['verdict']}",
            f"    stock's time / ours at rows per expert  {'  '.join(samples)}",
        ]
    lines += ["", *(f"problem: {text}" for text in result["problems"])]
    lines += [f"advice: {text}" for text in result["advice"]]
    if result["loaded"]:
        lines.append(
            "the plugin loads"
            + ("" if result["advice"] or result["problems"] else "; nothing is wrong")
        )
    return "\n".join(lines)


def _crossovers(result: dict) -> str:
    here, others = len(result["crossovers"]), result["other_crossovers"]
    text = (
        f"{here} kinds of layers timed here" if here else "nothing timed yet: loading models does"
    )
    return text + (f"; {others} of another machine, version or setting" if others else "")


def _gpu() -> str:
    """Why no GPU is used, before the backend has been asked."""
    if os.environ.get("OCTET_SYCL") == "0" or os.environ.get("OCTET_SYCL_FORCE") == "0":
        return "off by OCTET_SYCL"
    if not gpu.present():
        return "none of Intel's is seen"
    if gpu.prefix() is None:
        return "an Intel GPU, but no SYCL: pip install 'llama-octet[sycl]'"
    return "an Intel GPU, and SYCL; not used: see what the plugin says at load"


def _gpu_line(device: dict) -> str:
    return (
        f"{device['name']}: {device['device']} ({device['architecture']}, driver "
        f"{device['driver']}, {device['memory'] / 2**30:.1f} GiB)"
    )


def _installed() -> str | None:
    try:
        return importlib.metadata.version("llama-cpp-python")
    except importlib.metadata.PackageNotFoundError:
        return None


def _cache() -> dict:
    where = cache.folder()
    # The nearest folder that exists decides: the cache's own is made when it is first needed.
    there = where
    while not there.exists() and there != there.parent:
        there = there.parent
    writable = there.is_dir() and os.access(there, os.W_OK | os.X_OK)
    kept = sorted(p.name for p in where.glob("*") if p.is_file()) if where.is_dir() else []
    return {"path": str(where), "writable": writable, "files": kept}
