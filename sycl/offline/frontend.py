"""Device source to SPIR-V with the compiler of the SYCL runtime: what happens on a user's machine.

Needs the packages of the `test-sycl` extra in this interpreter's environment, and g++ for the small
program that calls the runtime (frontend.cpp).
"""

import hashlib
import os
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

from . import CACHE, Missing, OfflineError
from .variants import Variant

_PACKAGES = ("intel-sycl-rt", "intel-opencl-rt")
_HELPER = Path(__file__).with_name("frontend.cpp")


def _digest(*parts: bytes) -> str:
    total = hashlib.sha256()
    for part in parts:
        total.update(len(part).to_bytes(8, "little") + part)
    return total.hexdigest()[:24]


def versions() -> dict[str, str]:
    """Installed versions of the SYCL runtime's packages."""
    try:
        return {name: metadata.version(name) for name in _PACKAGES}
    except metadata.PackageNotFoundError as error:
        raise Missing(f"{error.name} is not installed: pip install '.[test-sycl]'") from None


def _without_comments(text: str) -> bytes:
    """A source without the lines that are only a comment."""
    return "".join(x for x in text.splitlines(True) if not x.lstrip().startswith("//")).encode()


def key(variant: Variant) -> str:
    """Changes with the variant's sources and options and with the compiler."""
    files = [variant.folder / variant.file, *sorted(variant.folder.glob("*.h"))]
    parts = [p.name.encode() + b"\0" + _without_comments(p.read_text()) for p in files]
    return _digest(repr((versions(), variant.options)).encode(), _HELPER.read_bytes(), *parts)


def helper() -> Path:
    """The compiled frontend.cpp."""
    path = CACHE / f"frontend-{_digest(repr(versions()).encode(), _HELPER.read_bytes())}"
    if not path.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        prefix = Path(sys.prefix)
        with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
            built = Path(scratch) / "frontend"
            command = ["g++", "-std=c++17", "-O1", "-w", _HELPER, f"-I{prefix}/include"]
            command += [f"-L{prefix}/lib", "-lsycl", f"-Wl,-rpath,{prefix}/lib", "-o", built]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise OfflineError(f"g++ cannot build {_HELPER.name}: {done.stderr[-2000:]}")
            built.rename(path)
    return path


def spirv(variant: Variant, out: Path) -> None:
    """Compiles a variant to the SPIR-V file `out`."""
    program = helper()
    with tempfile.TemporaryDirectory() as scratch:
        environment = {
            **os.environ,
            "SYCL_DUMP_IMAGES": "1",
            "OCL_ICD_FILENAMES": f"{sys.prefix}/lib/libintelocl.so",
        }
        command = [program, variant.folder, variant.file, *variant.options]
        done = subprocess.run(
            command, cwd=scratch, env=environment, capture_output=True, text=True, timeout=600
        )
        if done.returncode:
            raise OfflineError(
                f"{variant.name} does not compile:\n{(done.stdout + done.stderr)[-6000:]}"
            )
        images = list(Path(scratch).glob("*.spv"))
        if len(images) != 1:
            raise OfflineError(
                f"{variant.name}: the SYCL runtime left {len(images)} SPIR-V files, not 1"
            )
        out.write_bytes(images[0].read_bytes())
