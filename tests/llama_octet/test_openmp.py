"""One OpenMP runtime in the process: the one that the runtime's CPU backend computes with."""

import re
import subprocess

from llama_octet import library

LOADED = """
import os
import re
import sys
import llama_cpp
import llama_octet

# Loading uses all cores that it may.
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
OPENMP = re.compile(r"/lib(gomp|omp|iomp)[-.0-9][^/]*$")


def state():
    maps = {line.split()[-1] for line in open("/proc/self/maps")}
    return sorted(filter(OPENMP.search, maps)), len(os.listdir("/proc/self/task"))


def generate(model):
    tokens = [t for t, _ in zip(model.generate(list(range(1, 40)), temp=0), range(3))]


options = {"n_ctx": 64, "n_threads": 2, "n_threads_batch": 2, "verbose": False}
generate(llama_cpp.Llama(sys.argv[1], **options))
before = state()
generate(llama_octet.Llama(sys.argv[2], **options))
assert llama_octet.status()["kernels"], "none of our kernels ran"
print(before == state(), before, state())
"""


def test_the_library_brings_no_openmp_of_its_own():
    command = ["readelf", "-d", library.path()]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", listed)
    assert "libggml-base.so.0" in needed
    assert not [name for name in needed if "omp" in name]


def test_our_threads_are_those_of_the_cpu_backend(program, convert, tiny_moe):
    done = program(LOADED, tiny_moe, convert(tiny_moe))
    assert done.stdout.startswith("True "), done.stdout + done.stderr
