"""What the tests of the Python package use besides the fixtures in conftest.py."""

import os
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


def clean_environment(**extra) -> dict:
    """This process's environment without any switch of ours, plus `extra` (None: without)."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("OCTET_")}
    env.update({k: str(v) for k, v in extra.items() if v is not None})
    return env


def with_path(*folders) -> str:
    """A PYTHONPATH with these folders first."""
    old = os.environ.get("PYTHONPATH")
    return os.pathsep.join([*map(str, folders), *([old] if old else [])])


def complaint(done) -> str:
    """The one line of a command that failed as it should."""
    assert done.returncode in (1, 2), (done.returncode, done.stdout, done.stderr)
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("octet: ")
    assert "Traceback" not in lines[0]
    return lines[0]
