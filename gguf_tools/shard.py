"""One GGUF file, opened without trusting it.

Every count, length and offset is checked against the file's size before it is used, so a damaged
or hostile file ends in one line (`OctetError`), not in a traceback, a crash or a wait.
Nothing is decoded before it is asked for, and values can be copied on as the bytes they are.
"""

import itertools
import mmap
import os
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from . import ggml
from .cursor import Cursor
from .errors import OctetError, shown

F32, STRING, ARRAY = 6, 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q"}
_SCALARS[12] = "d"
_BYTES = {kind: struct.calcsize("<" + code) for kind, code in _SCALARS.items()}
TYPE_NAMES = {
    **{0: "u8", 1: "i8", 2: "u16", 3: "i16", 4: "u32", 5: "i32", 6: "f32", 7: "bool"},
    **{8: "string", 9: "array", 10: "u64", 11: "i64", 12: "f64"},
}

DEFAULT_ALIGNMENT = 32
_LONGEST_KEY = 65535  # bytes, by the format
_LONGEST_NAME = 63  # bytes of a tensor's name that the runtime can hold


@dataclass(frozen=True)
class Value:
    """One metadata value, left in the file: `start` and `size` exclude its key and type."""

    key: str
    kind: int  # STRING, ARRAY or a scalar's id
    item: int  # of an array: the kind of its items
    count: int  # of an array: how many; otherwise 1
    start: int
    size: int

    @property
    def type_name(self) -> str:
        """E.g. `u32` or `array of string`."""
        name = TYPE_NAMES[self.kind]
        return f"array of {TYPE_NAMES[self.item]}" if self.kind == ARRAY else name


@dataclass(frozen=True)
class Tensor:
    """One tensor: `shape` as in the file (the input dimension first), `start` within the file."""

    name: str
    type: ggml.GgmlType
    shape: tuple[int, ...]
    start: int
    size: int
    shard: "Shard"

    @property
    def columns(self) -> int:
        """Length of a row: the input dimension, K."""
        return self.shape[0]

    @property
    def rows(self) -> int:
        """Rows over all further dimensions."""
        rows = 1
        for n in self.shape[1:]:
            rows *= n
        return rows

    def read(self, first_row: int, rows: int) -> bytes:
        """The bytes of some rows. May be called from several threads."""
        row = self.type.row_bytes(self.columns)
        return self.shard.read(self.start + first_row * row, rows * row)

    def floats(self, first_row: int, rows: int) -> np.ndarray:
        """Some rows as f32, shape (rows, columns), not checked for NaN."""
        return ggml.to_float(self.type, self.read(first_row, rows), self.columns)


class Shard:
    """One file on disk: its header read and checked, its data read on demand."""

    def __init__(self, path):
        """Open the file and check its header."""
        self.path = Path(path)
        self.file = None
        try:
            if self.path.is_dir():
                raise OctetError(f"{self.path}: is a directory, not a GGUF file")
            if self.path.exists() and not self.path.is_file():
                raise OctetError(f"{self.path}: is not a regular file")  # a pipe would never end
            self.file = open(self.path, "rb")
            self.bytes = os.fstat(self.file.fileno()).st_size
            if self.bytes < 24:
                raise OctetError(f"{self.path}: too short for a GGUF file ({self.bytes} bytes)")
            with mmap.mmap(self.file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                self._header(Cursor(self.path, data, self.bytes))
        except (OSError, ValueError) as error:  # ValueError: a path that no file can have
            self.close()
            reason = getattr(error, "strerror", None) or error
            raise OctetError(f"{shown(self.path, 400)}: cannot be read: {reason}") from None
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file; nothing can be read from it any more."""
        if self.file:
            self.file.close()

    def read(self, start: int, size: int) -> bytes:
        """Exactly `size` bytes from `start`."""
        parts, left = [], size
        while left:
            try:
                part = os.pread(self.file.fileno(), left, start + size - left)
            except OSError as error:
                raise OctetError(f"{self.path}: cannot be read: {error.strerror}") from None
            if not part:
                raise OctetError(f"{self.path}: became shorter while it was being read")
            parts.append(part)
            left -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def value(self, entry: Value):
        """Decode a metadata value: int, float, bool, str, list of str, or a numpy array."""
        raw = self.read(entry.start, entry.size)
        if entry.kind == STRING:
            return raw[8:].decode("utf-8", "replace")
        if entry.kind != ARRAY:
            return struct.unpack("<" + _SCALARS[entry.kind], raw)[0]
        if entry.item != STRING:
            code = "?" if entry.item == 7 else "<" + _SCALARS[entry.item]
            return np.frombuffer(raw, code, offset=12)
        items, at = [], 12
        for _ in range(entry.count):
            length = struct.unpack_from("<Q", raw, at)[0]
            items.append(raw[at + 8 : at + 8 + length].decode("utf-8", "replace"))
            at += 8 + length
        return items

    # ---- the header ----

    def _header(self, cursor: Cursor) -> None:
        magic = cursor.data[cursor.skip(4, "the magic") : 4]
        if magic != b"GGUF":
            raise OctetError(
                f"{self.path}: not a GGUF file: it begins with {magic!r}, not b'GGUF' "
                "(convert the model to GGUF first)"
            )
        version = cursor.number("I", "the version")
        if version & 0xFFFF == 0:
            raise OctetError(f"{self.path}: a big-endian GGUF file; only little-endian is read")
        if version not in (2, 3):
            raise OctetError(f"{self.path}: GGUF version {version}; only 2 and 3 are read")
        tensors = self._count(cursor, "tensors", 24)
        values = self._count(cursor, "metadata values", 13)
        self.values: dict[str, Value] = {}
        for i in range(values):
            entry = self._entry(cursor, i)
            if entry.key in self.values:
                raise OctetError(f"{self.path}: damaged: {shown(entry.key)} appears twice")
            self.values[entry.key] = entry
        self.alignment = self._alignment(cursor)
        self.tensors: dict[str, Tensor] = {}
        found = [self._tensor(cursor, i) for i in range(tensors)]
        base = -(-cursor.at // self.alignment) * self.alignment
        for name, kind, shape, offset, size in found:
            if name in self.tensors:
                raise OctetError(f"{self.path}: damaged: tensor {shown(name)} appears twice")
            if offset % self.alignment:
                raise OctetError(
                    f"{self.path}: damaged: tensor {shown(name)} starts at {offset}, not a "
                    f"multiple of the alignment {self.alignment}"
                )
            self.tensors[name] = Tensor(name, kind, shape, base + offset, size, self)
        self._check_places()

    def _count(self, cursor: Cursor, what: str, smallest: int) -> int:
        count = cursor.number("Q", f"the number of {what}")
        if count > (self.bytes - cursor.at) // smallest:
            raise OctetError(
                f"{self.path}: damaged: {count} {what} cannot fit in {self.bytes} bytes"
            )
        return count

    def _entry(self, cursor: Cursor, index: int) -> Value:
        key = cursor.text(_LONGEST_KEY, f"metadata key {index}")
        what = f"the value of {shown(key)}"
        kind = cursor.number("I", what)
        start = cursor.at
        item, count = kind, 1
        if kind == ARRAY:
            item = cursor.number("I", what)
            count = cursor.number("Q", what)
        if item == STRING:
            cursor.strings(count, what)
        elif item in _BYTES:
            cursor.skip(count * _BYTES[item], what)
        else:
            raise OctetError(f"{self.path}: damaged: {what} has unknown type {item}")
        return Value(key, kind, item, count, start, cursor.at - start)

    def _alignment(self, cursor: Cursor) -> int:
        entry = self.values.get("general.alignment")
        if entry is None:
            return DEFAULT_ALIGNMENT
        raw = cursor.data[entry.start : entry.start + 4]
        alignment = int.from_bytes(raw, "little") if entry.kind == 4 else 0
        if alignment == 0 or alignment & (alignment - 1):
            raise OctetError(f"{self.path}: damaged: general.alignment is not a power of two (u32)")
        return alignment

    def _tensor(self, cursor: Cursor, index: int):
        name = cursor.text(_LONGEST_NAME, f"the name of tensor {index}")
        what = f"tensor {shown(name)}"
        dimensions = cursor.number("I", what)
        if dimensions > 4:
            raise OctetError(
                f"{self.path}: damaged: {what} has {dimensions} dimensions, not 0 to 4"
            )
        shape = tuple(cursor.number("Q", what) for _ in range(dimensions)) or (1,)
        type_id = cursor.number("i", what)
        offset = cursor.number("Q", what)
        kind = ggml.type_by_id(type_id)
        if kind is None:
            raise OctetError(f"{self.path}: {what} has unknown weight type {type_id}")
        weights = 1
        for n in shape:
            weights *= n
        if weights == 0 or shape[0] % kind.block:
            raise OctetError(
                f"{self.path}: damaged: {what} of type {kind.name} has shape "
                f"{' × '.join(map(str, shape))}; rows must be a multiple of {kind.block}"
            )
        return name, kind, shape, offset, weights // kind.block * kind.size

    def _check_places(self) -> None:
        # Overlap first: a wrong idea of a type's size shows there before it reaches the end.
        ordered = sorted(self.tensors.values(), key=lambda t: t.start)
        for before, after in itertools.pairwise(ordered):
            if before.start + before.size > after.start:
                hint = (
                    " (it may mean another block size by type 42 than this runtime)"
                    if before.type.name == "q2_0"
                    else ""
                )
                raise OctetError(
                    f"{self.path}: damaged: tensor {shown(before.name)} of {before.size} bytes "
                    f"runs into {shown(after.name)}{hint}"
                )
        if ordered and ordered[-1].start + ordered[-1].size > self.bytes:
            last = ordered[-1]
            raise OctetError(
                f"{self.path}: cut short or damaged: tensor {shown(last.name)} ends at byte "
                f"{last.start + last.size}, but the file has {self.bytes} (download or copy it "
                "again)"
            )
