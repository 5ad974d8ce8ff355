"""What an evaluation has found so far, on disk until it is done, so that it can go on later.

A folder of the user's own under the temporary one, called by a hash of what is compared:

    plan.json        the tokens that every model is fed
    reference.bin    the control's logits, packed; reference.json says how far they go
    <hash>.bin       one candidate's figures per position, and <hash>.json how far they go
    <hash>.result    a candidate that is done
"""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import struct
import tempfile
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from .errors import OctetError
from .gguf_tools.evaluate.inputs import Item

_SAVE_SECONDS = 2.0
_SPARE = 256 << 20  # bytes of the disk that are left to others
# What packing leaves of f32 logits: a third of every fourth byte. Measured: 0.83.
PACKED_SHARE = 0.85

_pool = ThreadPoolExecutor(len(os.sched_getaffinity(0)))


def pack(row: np.ndarray) -> bytes:
    """f32 values, without loss: zlib for their first bytes; the others are noise, left as it is."""
    planes = np.ascontiguousarray(row.astype("<f4").view(np.uint8).reshape(-1, 4).T)
    top = zlib.compress(planes[3].tobytes(), 1)
    return struct.pack("<I", len(top)) + top + planes[:3].tobytes()


def unpack(read, count: int) -> np.ndarray:
    """`count` values that `pack` packed; `read(n)` gives the next n bytes."""
    (size,) = struct.unpack("<I", read(4))
    out = np.empty((count, 4), np.uint8)
    out[:, 3] = np.frombuffer(zlib.decompress(read(size)), np.uint8)
    out[:, :3] = np.frombuffer(read(3 * count), np.uint8).reshape(3, count).T
    return out.view("<f4").reshape(count)


def key_of(*parts) -> str:
    """A short hash of anything that JSON can hold."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def stamp(path) -> list:
    """What tells a file from another version of it."""
    found = os.stat(path)
    return [os.path.realpath(path), found.st_size, found.st_mtime_ns]


class Log:
    """Bytes that grow item by item, and how far they go. Use as a context manager.

    `ends`: bytes after each finished item. `answers`: what finished questions were answered with.
    `seconds`: how long it all took, earlier runs included.
    """

    def __init__(self, path: Path):
        """Open the log, as far as it was saved."""
        self.path, self.state = path.with_suffix(".bin"), path.with_suffix(".json")
        known = json.loads(self.state.read_text()) if self.state.exists() else {}
        self.ends: list[int] = known.get("ends", [])
        self.answers: list[int | None] = known.get("answers", [])
        self.seconds: float = known.get("seconds", 0.0)
        self.file = open(self.path, "r+b" if self.path.exists() else "w+b")
        self._saved = time.monotonic()
        self._since = self._saved

    def __enter__(self):
        """The log itself."""
        return self

    def __exit__(self, *_):
        """Save what is finished and close."""
        self._save()
        self.file.close()

    def restart(self, items: int) -> None:
        """Forget all but the first `items` items."""
        del self.ends[items:], self.answers[items:]
        self.file.truncate(self.ends[-1] if items else 0)
        self.file.seek(0, os.SEEK_END)

    def append(self, data: bytes) -> None:
        """More of the current item; an OctetError if it would fill the disk."""
        check_disk(self.path.parent, len(data))
        self.file.write(data)

    def finish(self, answer: int | None) -> None:
        """The current item is complete."""
        self.ends.append(self.file.tell())
        self.answers.append(answer)
        if time.monotonic() - self._saved > _SAVE_SECONDS:
            self._save()

    def _save(self) -> None:
        self.file.flush()
        now = time.monotonic()
        self.seconds += now - self._since
        self._saved = self._since = now
        state = {"ends": self.ends, "answers": self.answers, "seconds": self.seconds}
        _write(self.state, json.dumps(state))


class Store:
    """The folder of one evaluation. Use as a context manager.

    It is removed at the end, also of a failure, but kept if the user interrupts.
    """

    def __init__(self, key: str):
        """Make the folder or find it again; OctetError if another process is at it."""
        above = Path(tempfile.gettempdir()) / f"octet-eval-{os.getuid()}"
        self.folder = above / key
        for folder in (above, self.folder):
            folder.mkdir(mode=0o700, exist_ok=True)
            # In a folder that everybody can write to, it could be somebody else's.
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                raise OctetError(f"{folder}: is not yours: set TMPDIR to another folder")
        self._lock = open(self.folder / "lock", "w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise OctetError(
                f"{self.folder}: another octet eval of the same is running: wait for it"
            ) from None
        self.resumed = (self.folder / "reference.json").exists()
        self.kept = False

    def __enter__(self):
        """The store itself."""
        return self

    def __exit__(self, kind, *_):
        """Remove everything unless it was interrupted with something to go on from."""
        self.kept = kind is KeyboardInterrupt and any(
            _json(path).get("ends") for path in self.folder.glob("*.json") if path.stem != "plan"
        )
        if not self.kept:
            shutil.rmtree(self.folder, ignore_errors=True)
            with contextlib.suppress(OSError):  # unless there are others
                self.folder.parent.rmdir()
        self._lock.close()

    @property
    def bytes(self) -> int:
        """What the folder takes."""
        return sum(path.stat().st_size for path in self.folder.iterdir())

    def plan(self) -> dict | None:
        """The saved plan: {"vocab", "bos", "items"}."""
        path = self.folder / "plan.json"
        if not path.exists():
            return None
        found = _json(path)
        return {**found, "items": [Item(**item) for item in found["items"]]}

    def save_plan(self, vocab: int, bos: list[int], items: list[Item]) -> None:
        """Save what every model is fed."""
        plain = [vars(item) for item in items]
        _write(self.folder / "plan.json", json.dumps({"vocab": vocab, "bos": bos, "items": plain}))

    def log(self, name: str) -> Log:
        """The log called so."""
        return Log(self.folder / name)

    def result(self, name: str) -> dict | None:
        """The saved result called so."""
        path = self.folder / f"{name}.result"
        return _json(path) if path.exists() else None

    def save_result(self, name: str, result: dict) -> None:
        """Save a result; its log is of no more use."""
        _write(self.folder / f"{name}.result", json.dumps(result))
        for suffix in (".bin", ".json"):
            (self.folder / (name + suffix)).unlink(missing_ok=True)


def append_logits(log: Log, logits: np.ndarray) -> None:
    """Rows of logits to the reference."""
    for row in _pool.map(pack, logits):
        log.append(row)


def read_logits(log: Log, out: np.ndarray) -> None:
    """The next rows of the reference into out (rows, vocabulary)."""
    for row in out:
        row[:] = unpack(log.file.read, len(row))


def check_disk(folder: Path, needed: int) -> None:
    """Raise an OctetError if `needed` more bytes would fill the disk."""
    free = shutil.disk_usage(folder).free - _SPARE
    if free < needed:
        raise OctetError(
            f"{folder}: the control's logits need {needed / 1e6:.0f} MB more, "
            f"{max(free, 0) / 1e6:.0f} MB are free: set TMPDIR to another folder, or compare on "
            "less (--positions)"
        )


def check_memory(what: str, needed: int) -> None:
    """Raise an OctetError if `needed` bytes of memory are not there."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            free = int(line.split()[1]) << 10
            if free < needed:
                raise OctetError(
                    f"{what}: needs about {needed / 1e6:.0f} MB of memory, {free / 1e6:.0f} MB are "
                    "free: end other programs, or take a smaller model or --chunk"
                )


def _json(path: Path):
    return json.loads(path.read_text())


def _write(path: Path, text: str) -> None:
    part = path.with_name(path.name + ".part")
    part.write_text(text)
    os.replace(part, path)
