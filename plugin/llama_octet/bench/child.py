"""One model, one side, in a process of its own.

    python -m llama_octet.bench.child MODEL ours|stock THREADS PROMPT GENERATED

Prints one line of JSON: seconds of the prompt and of generation, and which kernels ran.
"""

import json
import random
import sys
import time

from .. import amx, header, registration, runtime
from ..errors import ModelError, OctetError, UsageError, one_line


def load(path: str, side: str, threads: int, length: int):
    """The model, ready to decode."""
    arguments = {
        "n_ctx": length,
        "n_batch": length,
        "n_threads": threads,
        "n_threads_batch": threads,
        "verbose": False,
    }
    if side == "ours":
        from .. import Llama

        return Llama(path, **arguments)
    found = header.read(path)
    package = runtime.import_llama_cpp()
    amx.protect(package)
    if found.guarded:
        # The blocks are valid Q8_0: the speed is right, the text is not.
        arguments["kv_overrides"] = {"general.architecture": found.architecture}
    try:
        return package.Llama(path, **arguments)
    except ValueError as why:
        raise ModelError(f"{path}: {one_line(why)}") from why


class Decoder:
    """Feeds tokens straight to llama.cpp: the time of Python around it is not measured."""

    def __init__(self, llm):
        """For a loaded model."""
        self._low = runtime.import_llama_cpp().llama_cpp
        self._llm = llm
        self._vocabulary = llm.n_vocab()
        self._random = random.Random(1)

    def _tokens(self, n: int):
        return (self._low.llama_token * n)(
            *(self._random.randrange(self._vocabulary) for _ in range(n))
        )

    def seconds(self, tokens: int, at_once: int) -> float:
        """Decode so many random tokens in batches of `at_once`."""
        low, context = self._low, self._llm.ctx
        batches = [
            self._tokens(min(at_once, tokens - start)) for start in range(0, tokens, at_once)
        ]
        begin = time.perf_counter()
        for batch in batches:
            failed = low.llama_decode(context, low.llama_batch_get_one(batch, len(batch)))
            if failed:
                raise OctetError(f"llama_decode failed ({failed})")
            low.llama_get_logits_ith(context, -1)  # waits for the result
        return time.perf_counter() - begin

    def forget(self) -> None:
        """Begin again with an empty context."""
        low = self._low
        low.llama_memory_clear(low.llama_get_memory(self._llm.ctx), True)


def measure(path: str, side: str, threads: int, prompt: int, generated: int) -> dict:
    """Load, warm up, measure."""
    llm = load(path, side, threads, prompt + generated + 8)
    decoder = Decoder(llm)
    decoder.seconds(prompt, prompt)  # reads the file's pages and makes every allocation
    decoder.seconds(2, 1)
    decoder.forget()
    result = {
        "prompt_s": decoder.seconds(prompt, prompt),
        "gen_s": decoder.seconds(generated, 1),
        "status": registration.status(),
    }
    llm.close()
    return result


def main() -> int:
    """The result as JSON, or one line of why not."""
    path, side, *numbers = sys.argv[1:]
    try:
        print(json.dumps(measure(path, side, *map(int, numbers))))
        return 0
    except OctetError as why:
        print(one_line(why), file=sys.stderr)
        return 2 if isinstance(why, UsageError) else 1


if __name__ == "__main__":
    sys.exit(main())
