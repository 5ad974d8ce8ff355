"""Ctrl-C, as a terminal sends it: to all processes at once, while something takes long."""

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time

import models
import pytest
from octet_helpers import clean_environment

PATIENCE = 300  # seconds; only a hang reaches it


@pytest.fixture
def started(tmp_path, cache):
    """Run `octet …` on a terminal of its own until it has said something; the process, its words.

    Its temporary files are in `tmp_path / "tmp"`.
    """
    children = []
    (tmp_path / "tmp").mkdir()

    def run(awaited, *arguments):
        above, below = pty.openpty()
        fcntl.ioctl(below, termios.TIOCSWINSZ, struct.pack("4H", 50, 200, 0, 0))
        env = clean_environment(OCTET_CACHE_DIR=cache, TMPDIR=tmp_path / "tmp")
        child = subprocess.Popen(
            [sys.executable, "-m", "llama_octet", *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=below,
            env=env,
            start_new_session=True,
        )
        os.close(below)
        children.append((child, above))
        return child, above, said_until(awaited, above)

    yield run
    for child, above in children:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
        os.close(above)


def said_until(awaited, terminal) -> str:
    """What is written to a terminal until it contains `awaited`, or to its end for None."""
    said, end = "", time.monotonic() + PATIENCE
    while awaited is None or awaited not in said:
        assert select.select([terminal], [], [], max(0, end - time.monotonic()))[0], said
        try:
            more = os.read(terminal, 4096)
        except OSError:  # nobody has the other side any more
            more = b""
        if not more:
            assert awaited is None, said
            break
        said += more.decode("utf-8", "replace")
    return said


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(
        "A small cake of oats and rye, 42 grams; more or less. The weather is fine.\n" * 900
    )
    return path


@pytest.fixture(scope="module")
def slow(tmp_path_factory):
    """A model that takes a while to convert to iq3_s."""
    path = tmp_path_factory.mktemp("slow") / "in.gguf"
    return models.random_moe(path, n_embd=512, n_ff=512, experts=32, layers=1)


def check_stopped(child, terminal, folder, number):
    os.killpg(child.pid, number)
    said = said_until(None, terminal)
    assert child.wait(PATIENCE) == (130 if number == signal.SIGINT else 1), said
    assert "Traceback" not in said
    last = said.replace("\r", "\n").split("\n")
    why = "interrupted" if number == signal.SIGINT else "stopped by SIGTERM; nothing was written"
    assert [line for line in last if line.strip()][-1].endswith(f"octet: {why}")
    assert [path for path in folder.rglob("*") if path.is_file()] == []
    with pytest.raises(ProcessLookupError):
        os.killpg(child.pid, 0)  # no process that it started is left


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_calibrate(tmp_path, slow, text, started, number):
    child, terminal, _ = started(
        "calibrating:   2%", "calibrate", slow, text, "-o", tmp_path / "s.gguf", "--gram", "*"
    )
    check_stopped(child, terminal, tmp_path, number)


def test_the_search_for_alpha(tmp_path, slow, text, started):
    child, terminal, said = started(
        *("no smoothing: mean KL", "convert", slow, tmp_path / "out.gguf"),
        *("--smooth", "smoothquant", "--calibration", text),
    )
    assert "converting:" in said and "comparing:" in said
    check_stopped(child, terminal, tmp_path, signal.SIGINT)


def test_gptq(tmp_path, slow, text, started, octet_json, tmp_path_factory):
    stats = tmp_path_factory.mktemp("stats") / "s.gguf"
    octet_json("calibrate", slow, text, "-o", stats, "--gram", "*", "--tokens", 512)
    child, terminal, _ = started(
        *("converting:   ", "convert", slow, tmp_path / "out.gguf", "--experts", "iq3_s:iq3_s"),
        *("--imatrix", stats, "--round", "gptq"),
    )
    check_stopped(child, terminal, tmp_path, signal.SIGINT)
