"""Writing a GGUF file: encoded keys, the layout, and a file that appears whole or not at all."""

import os
import secrets
import struct
from contextlib import contextmanager, suppress
from pathlib import Path

from .errors import OctetError, UsageError
from .reader import Model
from .shard import ARRAY, F32, STRING, Value

ALIGNMENT = 32


def _text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def u32(key: str, value: int) -> bytes:
    """An encoded u32 entry."""
    return _text(key) + struct.pack("<II", 4, value)


def f32(key: str, value: float) -> bytes:
    """An encoded f32 entry."""
    return _text(key) + struct.pack("<If", F32, value)


def string(key: str, value: str) -> bytes:
    """An encoded string entry."""
    return _text(key) + struct.pack("<I", STRING) + _text(value)


def strings(key: str, values: list[str]) -> bytes:
    """An encoded string array entry."""
    head = struct.pack("<IIQ", ARRAY, STRING, len(values))
    return _text(key) + head + b"".join(map(_text, values))


def i32s(key: str, values: list[int]) -> bytes:
    """An encoded i32 array entry."""
    return _text(key) + struct.pack(f"<IIQ{len(values)}i", ARRAY, 5, len(values), *values)


def copied(model: Model, entry: Value) -> bytes:
    """An entry of another file, its value byte for byte."""
    value = model.shards[0].read(entry.start, entry.size)
    return _text(entry.key) + struct.pack("<I", entry.kind) + value


def padding(size: int) -> int:
    """Zero bytes needed after `size` to reach the alignment."""
    return -size % ALIGNMENT


def header(entries: list[bytes], tensors: list[tuple]) -> bytes:
    """Everything before the data: `tensors` are (name, shape, type id, bytes), data in order."""
    parts = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(entries)), *entries]
    offset = 0
    for name, shape, type_id, size in tensors:
        parts.append(_text(name))
        parts.append(struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, type_id, offset))
        offset += size + padding(size)
    raw = b"".join(parts)
    return raw + bytes(padding(len(raw)))


def check_target(out: str, force: bool, sources) -> Path:
    """Where a file called `out` will really lie; an error if it must not be written.

    `sources`: files it is made from, which it may not replace. `force`: it may replace others.
    """
    # Through a link to what it points at: renaming over the link would cut it.
    path = Path(os.path.realpath(out))
    if path.is_dir():
        raise UsageError(f"{out}: is a directory: give the file's name too")
    if not path.parent.is_dir():
        raise UsageError(f"{path.parent}: no such directory: create it first")
    if path.exists():
        for source in sources:
            if os.path.samefile(path, source):
                raise UsageError(f"{out}: is the input itself: write to another file")
        if not path.is_file():
            raise UsageError(f"{out}: is not a regular file")
        if not force:
            raise OctetError(f"{out}: exists: give --force to overwrite it")
    return path


@contextmanager
def whole_file(path: Path, size: int):
    """A binary file for `size` bytes that becomes `path` only if the block ends well.

    Whatever goes wrong, also an interrupt, the partial file beside `path` is removed.
    """
    part = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
    done = False
    try:
        space = os.statvfs(path.parent)
        free = space.f_bavail * space.f_frsize
        if space.f_blocks and free < size:
            raise OctetError(
                f"{path.parent}: {size / 1e6:.0f} MB are needed, {free / 1e6:.0f} MB are free: "
                "make room or write elsewhere"
            )
        # Not mkstemp: that file would keep its private permissions when it is renamed.
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
        done = True
        _sync_directory(path.parent)
    except OSError as error:
        raise OctetError(
            f"{path}: cannot be written: {error.strerror or error} (nothing was left behind)"
        ) from None
    finally:
        if not done:
            with suppress(OSError):  # it may never have come to be; the first error is the one told
                part.unlink()


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    except OSError:
        pass  # some file systems cannot; the file itself is safe
    finally:
        os.close(fd)
