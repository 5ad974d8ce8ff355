"""Whether stock AMX works in the installed runtime, and keeping models away from it if not.

Stock ggml moves the weights of most types into an AMX buffer on machines that have AMX. In a
build whose compiler got that code wrong the first prompt kills the process. This finds out in a
child process, once per installed library.
"""

import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from . import cache, runtime
from .errors import one_line

TIMEOUT = 20  # seconds; the child needs a tenth of one


def state(package) -> dict:
    """{"state": "ok" | "broken" | "absent", "why": ..., "cached": bool}."""
    name, flags = runtime.cpu()
    if "amx_int8" not in flags:
        return {"state": "absent", "why": "this CPU has no AMX", "cached": False}
    lib = runtime.shared_library(package)._name
    library = runtime.mapped("libggml-cpu") or Path(lib)
    key = _key(library, name)
    kept = cache.read(cache_file(library))
    if kept and kept.get("key") == key and kept.get("state") in ("ok", "broken", "absent"):
        return {"state": kept["state"], "why": str(kept.get("why", "")), "cached": True}
    found = _ask_child(lib)
    cache.write(cache_file(library), {"key": key, **found})
    return {**found, "cached": False}


def cache_file(library: Path) -> str:
    """Where the answer for a library is kept: several virtual environments share the folder."""
    return f"stock-amx-{hashlib.sha256(os.fsencode(library)).hexdigest()[:16]}.json"


def avoid(package) -> None:
    """From now on models are loaded without extra buffer types: no AMX, and no repacking.

    `llama_cpp.Llama` has no argument for it, but takes its defaults from this function.
    """
    module = package.llama_cpp
    ordinary = module.llama_model_default_params
    if getattr(ordinary, "octet_avoids_amx", False):
        return

    def llama_model_default_params():
        params = ordinary()
        params.use_extra_bufts = False
        return params

    llama_model_default_params.octet_avoids_amx = True
    module.llama_model_default_params = llama_model_default_params
    if getattr(package, "llama_model_default_params", None) is ordinary:
        package.llama_model_default_params = llama_model_default_params


def protect(package) -> dict:
    """Find out, and avoid what is broken. The state."""
    found = state(package)
    if found["state"] == "broken":
        avoid(package)
    return found


def _key(library: Path, cpu: str) -> dict:
    try:
        stat = library.stat()
    except OSError:
        return {"path": str(library), "cpu": cpu}
    return {
        "path": str(library),
        "size": stat.st_size,
        "mtime_ns": stat.st_mtime_ns,
        "cpu": cpu,
    }


def _ask_child(libllama: str) -> dict:
    program = Path(__file__).with_name("amx_child.py")
    try:
        child = subprocess.run(
            [sys.executable, "-I", "-S", str(program), libllama],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"state": "broken", "why": f"a small product took more than {TIMEOUT} s"}
    except OSError as why:
        return {"state": "broken", "why": f"it could not be checked: {one_line(why)}"}
    if child.returncode < 0:
        try:
            name = signal.Signals(-child.returncode).name
        except ValueError:
            name = f"signal {-child.returncode}"
        return {"state": "broken", "why": f"a small product died of {name}"}
    try:
        answer = json.loads(child.stdout)
        return {"state": str(answer["state"]), "why": str(answer["why"])}
    except (ValueError, KeyError, TypeError):
        said = one_line(child.stderr)[-200:] or f"exit code {child.returncode}"
        return {"state": "broken", "why": f"a small product failed: {said}"}
