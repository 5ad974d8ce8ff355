"""load(): which runtimes and libraries are let in, and what is said to the others."""

import json
import shutil

import llama_octet
import pytest
from llama_octet import library, runtime
from octet_helpers import complaint, with_path

LOAD = """
import sys
import llama_octet
try:
    llama_octet.load()
except llama_octet.OctetError as why:
    sys.exit(f"refused: {why}")
"""


def refusal(done) -> str:
    """The reason of a load that was refused, which must be one line and no crash."""
    assert done.returncode == 1, (done.returncode, done.stderr)
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("refused: ")
    return lines[0]


def test_importing_the_package_loads_nothing(program):
    done = program("import sys, llama_octet\nprint('llama_cpp' in sys.modules)")
    assert done.stdout == "False\n"


def test_load_twice_registers_once(program):
    done = program("""
import ctypes, llama_octet
first = llama_octet.load()
assert llama_octet.load() is first
lib = first.package.llama_cpp._lib
lib.ggml_backend_reg_get.restype = ctypes.c_void_p
lib.ggml_backend_reg_name.restype = ctypes.c_char_p
lib.ggml_backend_reg_name.argtypes = [ctypes.c_void_p]
count = ctypes.c_size_t(lib.ggml_backend_reg_count()).value
names = [lib.ggml_backend_reg_name(lib.ggml_backend_reg_get(ctypes.c_size_t(i)))
         for i in range(count)]
print(names.count(b"OCTET"), names.count(b"CPU"))
""")
    assert done.stdout == "1 1\n", done.stderr
    # The line that says what is on comes once, too.
    assert sum(line.startswith("octet: ") for line in done.stderr.splitlines()) == 1


def test_load_from_many_threads_registers_once(program):
    done = program("""
import threading, llama_octet
found = []
threads = [threading.Thread(target=lambda: found.append(llama_octet.load())) for _ in range(8)]
for t in threads: t.start()
for t in threads: t.join()
print(len(found), len(set(map(id, found))))
""")
    assert done.stdout == "8 1\n", done.stderr
    assert sum(line.startswith("octet: ") for line in done.stderr.splitlines()) == 1


def test_status_before_load(program):
    done = program("import llama_octet\nprint(llama_octet.status())")
    assert done.stdout == "{'loaded': False}\n"


def test_status_after_load(program):
    done = program(
        "import json, llama_octet\nllama_octet.load()\nprint(json.dumps(llama_octet.status()))"
    )
    status = json.loads(done.stdout)
    assert status["loaded"] is True
    assert status["version"] == llama_octet.__version__
    assert status["isa"] in status["isas"]
    assert "scalar" in status["isas"]
    assert status["bytes_packed"] == 0
    assert status["tensors"] == []
    assert all(of["calls"] == 0 for of in status["kernels"].values())
    assert status["runtime"]["llama_cpp_python"] in runtime.SUPPORTED
    assert status["runtime"]["ggml_version"] == "0.25.3"
    assert status["runtime"]["libggml"].endswith(".so.0")


def test_backend_sits_in_the_ggml_that_the_models_use(program):
    # The package maps ggml twice; a plugin in the wrong copy loads well and does nothing.
    done = program("""
import ctypes, llama_octet
lib = llama_octet.load().package.llama_cpp._lib
lib.ggml_backend_dev_by_name.restype = ctypes.c_void_p
print(bool(lib.ggml_backend_dev_by_name(b"OCTET")))
""")
    assert done.stdout == "True\n", done.stderr


# ---- another llama-cpp-python ----


@pytest.fixture
def impostor(tmp_path):
    """A folder with a package called llama_cpp that comes before the real one."""

    def make(text):
        folder = tmp_path / "impostor" / "llama_cpp"
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text(text)
        return folder.parent

    return make


def test_other_version_is_refused_with_both_versions_named(program, impostor):
    text = refusal(program(LOAD, before=[impostor("__version__ = '0.3.26'\n")]))
    assert "0.3.26" in text
    assert "0.3.36" in text


def test_version_is_judged_before_anything_of_it_is_used(program, impostor):
    # Neither llama_cpp.llama_cpp nor Llama exists here: only the version is looked at.
    code = LOAD.replace("llama_octet.load()", "llama_octet.Llama")
    text = refusal(program(code, before=[impostor("__version__ = '9.9.9'\n")]))
    assert "9.9.9" in text


def test_package_without_version_is_refused(program, impostor):
    assert "unknown" in refusal(program(LOAD, before=[impostor("")]))


def test_broken_installation_is_one_line(program, impostor):
    broken = impostor("raise RuntimeError('Failed to load shared library:\\nno such file')\n")
    text = refusal(program(LOAD, before=[broken]))
    assert "cannot be imported" in text
    assert "no such file" in text


def test_missing_llama_cpp_is_one_line(program):
    code = "import sys\nsys.modules['llama_cpp'] = None\n" + LOAD
    assert "llama-cpp-python is not installed" in refusal(program(code))


def test_command_with_other_version(octet, impostor, tmp_path):
    model = tmp_path / "model.gguf"
    model.write_bytes(b"GGUF" + (3).to_bytes(4, "little") + bytes(16))
    text = complaint(
        octet("run", model, "-p", "x", PYTHONPATH=with_path(impostor("__version__ = '0.3.26'\n")))
    )
    assert "0.3.26" in text
    assert "0.3.36" in text


# ---- the library ----


@pytest.fixture
def copy(tmp_path):
    """A copy of the installed package, to be damaged; the folder to put on the path."""
    source = library.path().parent
    target = tmp_path / "a copy" / "llama_octet"
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    return target.parent


def test_path_with_spaces(program, copy):
    done = program(LOAD + "print(llama_octet.__file__)", before=[copy])
    assert done.returncode == 0, done.stderr
    assert "a copy" in done.stdout


def test_missing_library(program, copy):
    (copy / "llama_octet" / library.NAME).unlink()
    text = refusal(program(LOAD, before=[copy]))
    assert library.NAME in text
    assert "reinstall" in text


@pytest.mark.parametrize("content", [b"", b"not a library", b"\x7fELF" + bytes(100)])
def test_not_a_library(program, copy, content):
    file = copy / "llama_octet" / library.NAME
    file.unlink()
    file.write_bytes(content)
    assert library.NAME in refusal(program(LOAD, before=[copy]))


@pytest.mark.parametrize("share", [0.01, 0.3, 0.5, 0.7, 0.9, 0.99])
def test_library_cut_short(program, copy, share):
    # The dynamic linker would map it, and the process would die of touching what is not there.
    file = copy / "llama_octet" / library.NAME
    whole = file.read_bytes()
    file.unlink()
    file.write_bytes(whole[: int(len(whole) * share)])
    assert library.NAME in refusal(program(LOAD, before=[copy]))


def test_directory_in_place_of_the_library(program, copy):
    file = copy / "llama_octet" / library.NAME
    file.unlink()
    file.mkdir()
    assert library.NAME in refusal(program(LOAD, before=[copy]))


def test_another_library_under_its_name(program, copy):
    # It opens, but lacks our functions.
    import llama_cpp

    file = copy / "llama_octet" / library.NAME
    file.unlink()
    file.symlink_to(next((library.Path(llama_cpp.__file__).parent / "lib").glob("libggml.so")))
    text = refusal(program(LOAD, before=[copy]))
    assert "octet_error" in text
