"""A GGUF model, of one file or of several."""

import re
from pathlib import Path

from .errors import OctetError, shown
from .shard import STRING, Shard, Tensor

_SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")


class Model:
    """A GGUF model: one file, or all files of a split one. Use as a context manager.

    `values`: metadata of the first file without the keys that only describe the split.
    `tensors`: of all files, in order.
    """

    def __init__(self, path):
        """Open the file, and the further ones of a split model."""
        self.path = Path(path)
        self.shards = [Shard(path)]
        try:
            self._open_rest()
            self.values = {
                k: v for k, v in self.shards[0].values.items() if not k.startswith("split.")
            }
            self.tensors: dict[str, Tensor] = {}
            for shard in self.shards:
                for name, tensor in shard.tensors.items():
                    if name in self.tensors:
                        raise OctetError(
                            f"{shard.path}: tensor {shown(name)} is also in {self.path}"
                        )
                    self.tensors[name] = tensor
            self._check_split_total()
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        """Return the model itself."""
        return self

    def __exit__(self, *_):
        """Close all files."""
        self.close()

    def close(self) -> None:
        """Close all files."""
        for shard in self.shards:
            shard.close()

    @property
    def file_bytes(self) -> int:
        """Size of all files together."""
        return sum(shard.bytes for shard in self.shards)

    def get(self, key: str, default=None):
        """Decoded value of a metadata key (see `Shard.value`)."""
        entry = self.values.get(key)
        return default if entry is None else self.shards[0].value(entry)

    def text(self, key: str) -> str | None:
        """A string value; None if the key is missing, an error if it is of another type."""
        entry = self.values.get(key)
        if entry is not None and entry.kind != STRING:
            raise OctetError(f"{self.path}: {key} is of type {entry.type_name}, not string")
        return None if entry is None else self.shards[0].value(entry)

    # ---- split files ----

    def _split(self, shard: Shard, key: str) -> int:
        entry = shard.values.get(key)
        value = shard.value(entry) if entry and entry.kind in (0, 1, 2, 3, 4, 5, 10, 11) else None
        if value is None or value < 0:
            raise OctetError(f"{shard.path}: {key} is missing or not a number (rejoin the model)")
        return value

    def _open_rest(self) -> None:
        first = self.shards[0]
        if "split.count" not in first.values:
            return
        count = self._split(first, "split.count")
        if count <= 1:
            return
        match = _SHARD.fullmatch(self.path.name)
        if not match or int(match[3]) != count:
            raise OctetError(
                f"{self.path}: says it is part of a model in {count} files (split.count), but is "
                f"not called …-00001-of-{count:05}.gguf: give it back its name, next to the other "
                "parts, or remove the stale split.* keys"
            )
        if self._split(first, "split.no") != 0 or int(match[2]) != 1:
            raise OctetError(
                f"{self.path}: is not the first of {count} parts: give "
                f"{match[1]}-00001-of-{count:05}.gguf"
            )
        for number in range(1, count):
            path = self.path.with_name(f"{match[1]}-{number + 1:05}-of-{count:05}.gguf")
            if not path.exists():
                raise OctetError(f"{path}: is missing: {self.path.name} has {count} parts")
            shard = Shard(path)
            self.shards.append(shard)
            for key, wanted in (("split.no", number), ("split.count", count)):
                found = self._split(shard, key)
                if found != wanted:
                    raise OctetError(
                        f"{path}: {key} is {found}, not {wanted}: another model's part"
                    )

    def _check_split_total(self) -> None:
        if len(self.shards) == 1:
            return
        total = self._split(self.shards[0], "split.tensors.count")
        if total != len(self.tensors):
            raise OctetError(
                f"{self.path}: split.tensors.count is {total}, but the {len(self.shards)} parts "
                f"hold {len(self.tensors)} tensors: parts of different models"
            )
