"""The graphics processor: where SYCL is installed, and the library that reaches it.

The backend itself knows nothing of SYCL. What does, sycl/host/driver.cpp, is compiled with the
user's C++ compiler against the SYCL headers found here the first time it is needed, and kept in the
cache folder.
"""

import hashlib
import os
import shlex
import shutil
import site
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from . import cache, switches
from .errors import OctetError, one_line

INTEL = "0x8086"  # the PCI vendor
TIMEOUT = 300  # seconds; the compiler needs about ten


@dataclass(frozen=True)
class Gpu:
    """What the backend is told (octet_use_gpus in plugin/backend/api.h)."""

    driver: Path
    sources: Path
    cache: Path


def sources() -> Path:
    """This project's sycl/ folder as it is installed."""
    return Path(__file__).parent / "sycl"


def prefix() -> Path | None:
    """Where SYCL is: with include/sycl/sycl.hpp and lib/libsycl.so. None if it is not installed.

    The packages of PyPI put it into the environment's own folders; CMPLR_ROOT is oneAPI's.
    """
    for place in (sys.prefix, os.environ.get("CMPLR_ROOT"), site.getuserbase()):
        if not place:
            continue
        where = Path(place)
        if (where / "include/sycl/sycl.hpp").is_file() and (where / "lib/libsycl.so").is_file():
            return where
    return None


def present() -> bool:
    """Whether the machine has a GPU of Intel's that programs may use."""
    for vendor in Path("/sys/class/drm").glob("renderD*/device/vendor"):
        try:
            if vendor.read_text().strip() == INTEL:
                return True
        except OSError:
            continue
    return False


def find() -> tuple[Gpu | None, str]:
    """What to tell the backend about the GPU, and why there is nothing to tell ("" if unasked for).

    OCTET_SYCL=0 keeps everything away; auto looks no further without an Intel GPU, or without SYCL.
    """
    wish = os.environ.get("OCTET_SYCL") or "auto"
    on_cpu = os.environ.get("OCTET_SYCL_DEVICE") == "cpu"
    if wish == "0" or os.environ.get("OCTET_SYCL_FORCE") == "0":
        return None, ""
    if any(row["wrong"] for row in switches.survey()):
        return None, ""  # the backend is about to refuse it
    if wish == "auto" and not on_cpu and not present():
        return None, ""
    where = prefix()
    if where is None:
        install = "SYCL is not installed (pip install 'llama-octet[sycl]')"
        return None, install if wish == "1" or on_cpu else ""
    if on_cpu:
        # The OpenCL loader looks for the runtime of central processors in the system only.
        os.environ.setdefault("OCL_ICD_FILENAMES", str(where / "lib/libintelocl.so"))
    try:
        return Gpu(driver(where), sources(), cache.folder()), ""
    except OctetError as why:
        return None, str(why)


def compiler() -> list[str]:
    """The C++ compiler as a command: CXX, or the first that is installed. OctetError if none is."""
    chosen = shlex.split(os.environ.get("CXX", ""))
    if chosen:
        return chosen
    for name in ("c++", "g++", "clang++"):
        if shutil.which(name):
            return [name]
    raise OctetError("the GPU needs a C++ compiler: install g++ 12 or newer, or name one in CXX")


def driver(where: Path) -> Path:
    """The compiled driver for the SYCL in `where`. OctetError, one line, if it cannot be had."""
    host = sources() / "host"
    command = compiler()
    key = hashlib.sha256()
    library = (where / "lib/libsycl.so").resolve()
    for part in (*command, library, library.stat().st_size, library.stat().st_mtime_ns):
        key.update(f"{part}\n".encode())
    try:
        for name in ("driver.h", "driver.cpp"):
            key.update((host / name).read_bytes())
    except OSError as why:
        raise OctetError(f"{host}: {why.strerror}: reinstall llama-octet") from why
    out = cache.folder() / f"sycl-driver-{key.hexdigest()[:16]}.so"
    if not out.is_file():
        _compile(command, host / "driver.cpp", where, out)
    return out


def _compile(command, source: Path, where: Path, out: Path) -> None:
    print("octet: compiling the SYCL driver, once", file=sys.stderr, flush=True)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        handle, beside = tempfile.mkstemp(dir=out.parent, prefix=out.stem, suffix=".part")
        os.close(handle)
    except OSError as why:
        raise OctetError(f"{out.parent}: {why.strerror} (set OCTET_CACHE_DIR)") from why
    try:
        done = subprocess.run(
            [
                *command,
                *("-std=c++17", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", str(source)),
                *("-isystem", str(where / "include"), "-L" + str(where / "lib"), "-lsycl"),
                *("-Wl,-rpath," + str(where / "lib"), "-o", beside),
            ],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )
        if done.returncode != 0:
            errors = [line for line in done.stderr.splitlines() if "error" in line]
            said = one_line((errors or done.stderr.splitlines() or ["no message"])[0])
            raise OctetError(f"the SYCL driver cannot be compiled by {command[0]}: {said}")
        os.replace(beside, out)
    except (OSError, subprocess.TimeoutExpired) as why:
        raise OctetError(f"the SYCL driver cannot be compiled: {one_line(why)}") from why
    finally:
        Path(beside).unlink(missing_ok=True)
