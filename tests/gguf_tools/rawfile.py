"""Writes GGUF files byte by byte, including ones that no honest program would write."""

import struct
from dataclasses import dataclass, field


def text(value) -> bytes:
    raw = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(raw)) + raw


def u32(value: int) -> bytes:
    return struct.pack("<II", 4, value)


def string(value) -> bytes:
    return struct.pack("<I", 8) + text(value)


def strings(values) -> bytes:
    return struct.pack("<IIQ", 9, 8, len(values)) + b"".join(map(text, values))


def i32s(values) -> bytes:
    return struct.pack(f"<IIQ{len(values)}i", 9, 5, len(values), *values)


@dataclass
class Raw:
    """A file to be: change any part, then `write`. Offsets follow the data unless given."""

    values: dict = field(default_factory=lambda: {"general.architecture": string("llama")})
    tensors: list = field(default_factory=list)  # [name, shape, type id, data, offset or None]
    magic: bytes = b"GGUF"
    version: int = 3
    tensor_count: int | None = None
    value_count: int | None = None
    alignment: int = 32

    def add(self, name, shape, type_id, data, offset=None):
        self.tensors.append([name, shape, type_id, data, offset])
        return self

    def bytes(self) -> bytes:
        counts = (
            len(self.tensors) if self.tensor_count is None else self.tensor_count,
            len(self.values) if self.value_count is None else self.value_count,
        )
        out = self.magic + struct.pack("<IQQ", self.version, *counts)
        for key, value in self.values.items():
            out += text(key) + value
        data = b""
        for name, shape, type_id, content, offset in self.tensors:
            data += bytes(-len(data) % self.alignment)
            at = len(data) if offset is None else offset
            out += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, type_id, at)
            data += content
        return out + bytes(-len(out) % self.alignment) + data

    def write(self, path):
        path.write_bytes(self.bytes())
        return path
