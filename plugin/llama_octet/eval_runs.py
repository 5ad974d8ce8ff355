"""Models in child processes, and a pass of one over the inputs of `octet eval`."""

import contextlib
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field

import numpy as np

from . import switches
from .errors import OctetError, UsageError, one_line
from .eval_child import BATCH
from .gguf_tools.evaluate.inputs import Item

LOGIT_BYTES = 32 << 20  # logits that are asked for at once; they count in the model's memory
PROBE_PROMPT, PROBE_TOKENS = 512, 32
# Of n repeats, the true median lies between the smallest and the largest with probability
# 1 − 2^(1 − n), whatever the distribution: 97 % for 6, below 95 % for fewer.
REPEATS, FEWEST_FOR_INTERVAL = 6, 6
# What two items begin with is not fed again if it is at least so long. Chunks of a text, which
# share no more than a first token, so do not depend on which of them came before.
_SHARED = 32


@dataclass
class Spec:
    """A model and how it is run, as written on the command line: FILE[@SETTING]…"""

    text: str
    path: str
    stock: bool
    environment: dict[str, str] = field(default_factory=dict)


def progress(items, what: str, done: int = 0):
    """The items behind the first `done`, with a bar on a terminal that tells the time left."""
    from tqdm import tqdm

    return tqdm(
        items[done:],
        desc=what,
        initial=done,
        total=len(items),
        disable=not sys.stderr.isatty(),
        file=sys.stderr,
        leave=False,
    )


def parse_spec(text: str, stock: bool) -> Spec:
    """FILE[@SETTING]…; a setting is stock, plugin or OCTET_NAME=VALUE. `stock`: the default."""
    parts = text.split("@")
    # A file's own name may have an @ in it.
    cut = next(
        (n for n in range(len(parts), 0, -1) if os.path.exists("@".join(parts[:n]))),
        next((n for n, part in enumerate(parts) if n and _is_setting(part)), len(parts)),
    )
    spec = Spec(text, "@".join(parts[:cut]), stock)
    for setting in parts[cut:]:
        name, equals, value = setting.partition("=")
        if setting in ("stock", "plugin"):
            spec.stock = setting == "stock"
        elif not equals or name not in switches.BACKEND:
            raise UsageError(
                f"{text}: @{setting} is none of @stock, @plugin, @OCTET_NAME=VALUE with one of "
                f"the switches {', '.join(switches.BACKEND)}"
            )
        elif switches.is_junk(name, value):
            raise UsageError(f"{text}: {name} takes {switches.accepted(name)}")
        else:
            spec.environment[name] = value
    if spec.stock and spec.environment:
        raise UsageError(f"{text}: stock llama.cpp does not know {next(iter(spec.environment))}")
    return spec


def sample_inputs(spec: Spec, text: str, out, tokens: int, threads: int) -> None:
    """Keep what every product of a model is fed; see layer_inputs. In a process of its own."""
    part = f"{out}.part.npz"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "llama_octet.layer_inputs", spec.path, text, part),
            *(str(tokens), str(threads)),
        ],
        capture_output=True,
        text=True,
        errors="replace",
        env={**os.environ, **spec.environment},
        check=False,
    )
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise OctetError(f"{spec.text}: {one_line(last[0])}")
    os.replace(part, out)


def _shared(held: list[int], item: Item) -> int:
    """How many of an item's tokens, from its first on, need not be fed after `held`."""
    both = zip(held, item.tokens[: item.first], strict=False)
    same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], both))
    return same if same >= _SHARED else 0


def _is_setting(text: str) -> bool:
    return text in ("stock", "plugin") or text.startswith("OCTET_")


class Run:
    """A model in a process of its own. Use as a context manager."""

    def __init__(self, spec: Spec, ctx: int, threads: int):
        """Start the process and load the model."""
        self.spec = spec
        self.started = time.perf_counter()
        self.said = tempfile.TemporaryFile()
        self.child = subprocess.Popen(
            [sys.executable, "-m", "llama_octet.eval_child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.said,
            env={**os.environ, **spec.environment},
        )
        self.threads, self.ctx = threads, 0
        try:
            self.open(ctx)
        except BaseException:
            self.child.kill()
            self._end()
            raise

    def __enter__(self):
        """The run itself."""
        return self

    def __exit__(self, failed, *_):
        """End the process, at once if something went wrong."""
        if failed:
            self.child.kill()
        self._end()

    def open(self, ctx: int) -> None:
        """Load the model with room for `ctx` tokens, again if it has another size now."""
        if ctx != self.ctx:
            spec = self.spec
            told = self._ask(open=spec.path, stock=spec.stock, ctx=ctx, threads=self.threads)
            self.vocab, self.bos, self.load_s = told["vocab"], told["bos"], told["load_s"]
            self.ctx, self.held, self.can_rewind = ctx, [], told["can_rewind"]

    def tokenize(self, text: str, bos: bool = False, special: bool = False) -> list[int]:
        """Tokens of a text."""
        return self._ask(tokenize=text, bos=bos, special=special)["tokens"]

    def feed(self, tokens: list[int], past: int, rows: int) -> tuple[float, np.ndarray]:
        """Seconds it took, and the logits at the last `rows` of the tokens."""
        seconds = self._ask(feed=tokens, past=past, rows=rows)["seconds"]
        self.held[past:] = tokens
        logits = np.empty((rows, self.vocab), np.float32)
        view = memoryview(logits).cast("B") if rows else b""
        done = 0
        while done < len(view):
            got = self.child.stdout.readinto(view[done:])
            if not got:
                self._fail()
            done += got
        return seconds, logits

    def starts_anew(self, held: list[int], item: Item) -> bool:
        """Whether an item after one of tokens `held` is fed from its first token on."""
        return not self.can_rewind or _shared(held, item) == 0

    def logits(self, item: Item):
        """The logits of an item's compared positions, some rows at a time, in order.

        What it begins with is not fed again if the item before began with the same: questions of
        one subject share their examples.
        """
        at, most = 0, max(1, LOGIT_BYTES // (4 * self.vocab))
        if self.can_rewind:
            at = _shared(self.held, item)
        while at < len(item.tokens):
            end = min(at + BATCH, len(item.tokens), max(at, item.first) + most)
            rows = max(0, end - max(at, item.first))
            _, found = self.feed(item.tokens[at:end], at, rows)
            if rows:
                yield found
            at = end

    def greedy(self, prompt: list[int], count: int) -> list[int]:
        """The likeliest `count` tokens after a prompt, one after the other."""
        item = Item("prompt", prompt, len(prompt) - 1, [])
        (row,) = self.logits(item)
        out = [int(row[0].argmax())]
        while len(out) < count:
            _, row = self.feed(out[-1:], len(prompt) + len(out) - 1, 1)
            out.append(int(row[0].argmax()))
        return out

    def speed(self, tokens: list[int], repeats: int) -> dict:
        """Prompt and generation speed, without choosing the tokens: medians of repeats.

        With their intervals, the smallest and the largest, if there are enough for 95 %.
        """
        reading, writing = [], []
        for _ in range(repeats):
            seconds, row = self.feed(tokens, 0, 1)
            reading.append(len(tokens) / seconds)
            steps = []
            for i in range(PROBE_TOKENS):
                seconds, row = self.feed([int(row[0].argmax())], len(tokens) + i, 1)
                steps.append(seconds)
            writing.append(1 / statistics.median(steps))
        found = {}
        for name, speeds in (("prompt_tps", reading), ("gen_tps", writing)):
            enough = repeats >= FEWEST_FOR_INTERVAL
            found[name] = statistics.median(speeds)
            found[f"{name}_interval"] = [min(speeds), max(speeds)] if enough else None
        return found

    def finish(self) -> dict:
        """Peak memory and time since the start, and what the plugin says it did."""
        told = self._ask(finish=True)
        return {
            "peak_rss_mib": told["peak_rss_mib"],
            "wall_s": time.perf_counter() - self.started,
            "load_s": self.load_s,
            "status": told["status"],
        }

    def _ask(self, **request) -> dict:
        try:
            self.child.stdin.write(json.dumps(request).encode() + b"\n")
            self.child.stdin.flush()
        except BrokenPipeError:
            pass  # it may have said why
        line = self.child.stdout.readline()
        if not line:
            self._fail()
        answer = json.loads(line)
        if "error" in answer:
            text = answer["error"]
            if self.spec.path not in text:
                text = f"{self.spec.text}: {text}"
            raise (UsageError if answer["exit_code"] == 2 else OctetError)(text)
        return answer

    def _fail(self):
        code = self.child.wait()
        if code < 0:
            raise OctetError(f"{self.spec.text}: the process died of {signal.Signals(-code).name}")
        self.said.seek(0)
        last = self.said.read().decode("utf-8", "replace").strip().splitlines()[-1:]
        raise OctetError(f"{self.spec.text}: {one_line((last or [f'exit code {code}'])[0])}")

    def _end(self) -> None:
        with contextlib.suppress(OSError):
            self.child.stdin.close()  # it ends when there are no more requests
        self.child.stdout.close()
        self.child.wait()
        self.said.close()
