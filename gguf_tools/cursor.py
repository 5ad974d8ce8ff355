"""Reading forward through bytes of a stranger's file, never past their end."""

import struct
from pathlib import Path

from .errors import OctetError


class Cursor:
    """Reads forward through a mapped header and refuses to leave it."""

    def __init__(self, path: Path, data, size: int):
        """`data`: the `size` bytes; `path`: whose they are, for messages."""
        self.path, self.data, self.size, self.at = path, data, size, 0

    def skip(self, count: int, what: str) -> int:
        """Step over `count` bytes; returns where they start."""
        if count < 0 or count > self.size - self.at:
            raise OctetError(
                f"{self.path}: cut short or damaged: {what} needs {count} bytes at offset "
                f"{self.at}, but the file has {self.size} (download or copy it again)"
            )
        start = self.at
        self.at += count
        return start

    def number(self, code: str, what: str):
        """One little-endian number of a struct code."""
        fmt = struct.Struct("<" + code)
        return fmt.unpack_from(self.data, self.skip(fmt.size, what))[0]

    def text(self, longest: int, what: str) -> str:
        """A length-prefixed UTF-8 string."""
        length = self.number("Q", what)
        if length > longest:
            raise OctetError(
                f"{self.path}: damaged: {what} is {length} bytes long, at most {longest} make sense"
            )
        start = self.skip(length, what)
        try:
            return self.data[start : start + length].decode()
        except UnicodeDecodeError:
            raise OctetError(f"{self.path}: damaged: {what} is not UTF-8 text") from None

    def strings(self, count: int, what: str) -> None:
        """Step over `count` length-prefixed strings; the loop is tight, vocabularies are long."""
        unpack, data, at, end = struct.Struct("<Q").unpack_from, self.data, self.at, self.size
        for _ in range(count):
            if at + 8 > end:
                break
            at += 8 + unpack(data, at)[0]
            if at > end:
                break
        else:
            self.at = at
            return
        raise OctetError(
            f"{self.path}: cut short or damaged: {what} goes past the end of the file "
            "(download or copy it again)"
        )
