"""The folder where measurements are kept between processes. Losing it costs time, nothing else."""

import json
import os
import tempfile
from pathlib import Path


def folder() -> Path:
    """OCTET_CACHE_DIR, or `llama-octet` in the user's cache folder."""
    chosen = os.environ.get("OCTET_CACHE_DIR")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    if base and os.path.isabs(base):
        return Path(base) / "llama-octet"
    try:
        return Path.home() / ".cache" / "llama-octet"
    except RuntimeError:  # no home folder known
        return Path(tempfile.gettempdir()) / f"llama-octet-{os.getuid()}"


def read(name: str) -> dict | None:
    """The JSON object kept under this name; None if there is none that can be read."""
    try:
        value = json.loads((folder() / name).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def write(name: str, value: dict) -> bool:
    """Keep a JSON object. False, and nothing else, if the folder cannot be written."""
    temporary = None
    try:
        where = folder()
        where.mkdir(parents=True, exist_ok=True)
        # Written beside and renamed: two processes that start together never read half a file.
        with tempfile.NamedTemporaryFile(
            "w", dir=where, prefix=name, delete=False, encoding="utf-8"
        ) as file:
            temporary = file.name
            json.dump(value, file, indent=1)
        os.replace(temporary, where / name)
    except OSError:
        if temporary:
            try:
                os.unlink(temporary)
            except OSError:
                pass
        return False
    return True
