"""Choosing a smoothing for `octet convert`, by what it does to the converted model.

Every candidate is converted and run; its mean KL from the model as it was decides. What is chosen
has proved its fold: the float model with it gives the same logits in the runtime.
"""

import contextlib
import os
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from .errors import OctetError, UsageError
from .gguf_tools import convert, folds
from .gguf_tools.evaluate import inputs
from .gguf_tools.imatrix import Importance
from .gguf_tools.reader import Model
from .gguf_tools.smoothing import (
    EXACT,
    Magnitudes,
    Smoothing,
    Treatment,
    norm_smoothing,
    up_down_smoothing,
)
from .measure import Yardstick

METHODS = ("none", "smoothquant", "updown", "both", "auto")
POSITIONS = 512  # compared for a decision
PROOF_POSITIONS = 64
PROOF_LIMIT = 1e-3  # largest difference of two logits, relative to the largest logit
CALIBRATION_TOKENS = 8192
_FIRST, _STEP, _LOWEST, _HIGHEST = 5, 1, 1, 9  # of the search for alpha, in tenths

# What the proof runs on where no text is given. Any text does: both models have to agree on it.
PROOF_TEXT = (
    "The tower was built of grey stone in 1482, and rebuilt after the fire. From its gallery one "
    "sees the harbour, the market with its 37 stalls, and on clear days the hills beyond the "
    "river. def area(width, height): return width * height"
)


@dataclass
class Choice:
    """What was chosen and why."""

    smoothing: Smoothing
    tried: list[dict] = field(default_factory=list)  # {"method", "alpha", "kl"}
    notes: list[str] = field(default_factory=list)
    logit_difference: float | None = None  # of the proof
    positions: int = 0

    def told(self) -> dict:
        """For `octet convert --json`."""
        return {
            "method": self.smoothing.label,
            "alpha": self.smoothing.alpha,
            "tried": self.tried,
            "positions": self.positions,
            "logit_difference": self.logit_difference,
        }


def check(smooth: str, alpha: str | None, calibration: str | None) -> float | None:
    """Refuse options that make no sense; alpha, None if it is to be searched."""
    if smooth not in METHODS:
        raise UsageError(f"--smooth {smooth}: must be one of {', '.join(METHODS)}")
    if alpha is not None and smooth not in ("smoothquant", "both", "auto"):
        raise UsageError("--alpha: only means something with --smooth smoothquant, both or auto")
    if calibration is not None and smooth == "none":
        raise UsageError("--calibration: only means something with --smooth")
    if calibration is None and smooth not in ("none", "updown"):
        raise UsageError(f"--smooth {smooth}: measures on a text: give --calibration TEXT")
    if alpha in (None, "search"):
        return None
    try:
        value = float(alpha)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise UsageError(f"--alpha {alpha}: must be search or a number from 0 to 1")
    return value


def choose(args, options: dict, alpha: float | None) -> Choice:
    """The smoothing for `octet convert`'s arguments; `options` are those of gguf_tools.convert."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="octet-")))
        return _Search(args, options, alpha, folder, stack).run()


class _NotPossible(OctetError):
    """A method that this model does not allow."""


class _Search:
    def __init__(self, args, options, alpha, folder, stack):
        self.args, self.options, self.alpha = args, options, alpha
        self.folder, self.stack = folder, stack
        self.threads = len(os.sched_getaffinity(0))
        self.model = stack.enter_context(Model(args.input))
        architecture = self.model.text("general.architecture") or ""
        self.norms, self.no_norms = folds.norm_folds(self.model, architecture)
        self.pairs, self.no_pairs = folds.up_down_folds(self.model, architecture)
        steps = {s.tensor.name: s for s in convert.planned(args.input, **options)}
        self.treatment = Treatment(
            rounded=lambda tensor: steps[tensor.name].rounded,
            rotated=lambda tensor: steps[tensor.name].rotation != 0,
        )
        self.magnitudes = Magnitudes()
        self.choice = Choice(Smoothing())
        self.importance = self.yardstick = None
        self.proof = None  # the float model's logits
        self.proved: list[tuple[Smoothing, float]] = []

    def run(self) -> Choice:
        """Try what the method allows, and keep what lowers the KL."""
        method, text = self.args.smooth, self.args.calibration
        if method in ("smoothquant", "both") and self.no_norms:
            raise UsageError(f"--smooth {method}: {self.args.input}: {self.no_norms}")
        if method in ("updown", "both") and self.no_pairs:
            raise UsageError(f"--smooth {method}: {self.args.input}: {self.no_pairs}")
        if text is not None:
            inputs.read_text(text)  # its one line, before anything takes time
            self.importance = self.stack.enter_context(Importance(self._statistics()))
        pairs = norms = Smoothing()
        if method != "smoothquant":
            pairs = self._usable("updown", self._pairs(), self.no_pairs)
        if method != "updown":
            first = _FIRST if self.alpha is None else 10 * self.alpha
            norms = self._usable("smoothquant", self._norms(first), self.no_norms)
        if text is None:
            self.choice.notes.append(
                "smoothing was not measured: --calibration TEXT has it checked, and is more exact"
            )
            return self._chosen(pairs)
        _say(f"running {self.args.input}")
        self.yardstick = self.stack.enter_context(
            Yardstick(self.args.input, text, POSITIONS, self.threads)
        )
        self.choice.positions = self.yardstick.positions
        best, kl = Smoothing(), self._kl(Smoothing())
        if pairs.columns and (method != "both" or not norms.columns):
            best, kl = self._better(best, kl, pairs)
        if norms.columns:
            under = pairs if method == "both" else best
            best, kl = self._search_alpha(best, kl, under, norms)
        return self._chosen(best)

    def _chosen(self, smoothing: Smoothing) -> Choice:
        if smoothing.columns:
            self.choice.logit_difference = self._prove(smoothing)
        else:
            smoothing = Smoothing()
            self.choice.notes.append("no smoothing lowered the divergence: left out")
        self.choice.smoothing = smoothing
        return self.choice

    def _usable(self, method: str, smoothing: Smoothing, why: str) -> Smoothing:
        """The smoothing if its fold is right; nothing, with a note, if auto may go without."""
        try:
            if why:
                raise _NotPossible(f"{self.args.input}: {why}")
            if smoothing.columns:
                self._prove(smoothing)
            return smoothing
        except _NotPossible as error:
            if self.args.smooth != "auto":
                raise
            self.choice.notes.append(f"no {method}: {error}")
            return Smoothing()

    def _prove(self, smoothing: Smoothing) -> float:
        """The largest difference of logits that it makes to the float model; refuse a large one."""
        for known, found in self.proved:
            if known is smoothing:
                return found
        # Products with quantized or F16 weights round their input, each type in its own way: what
        # any fold touches is F32 on both sides.
        everything = Smoothing(
            columns={t.name: None for fold in self.norms for t in fold.norm + fold.readers}
            | {t.name: None for fold in self.pairs for t in (fold.up, fold.down)}
        )
        if self.proof is None:
            plain, text = self.args.input, self.args.calibration
            if text is None:
                text = self.folder / "text.txt"
                text.write_text(PROOF_TEXT)
            tensors = self.model.tensors
            if any(tensors[name].type.name not in EXACT for name in everything.columns):
                plain = self.folder / "plain.gguf"
                convert.write_float(self.args.input, plain, Smoothing(), everything)
            self.proof = self.stack.enter_context(
                Yardstick(os.fspath(plain), os.fspath(text), PROOF_POSITIONS, self.threads)
            )
        smoothed = self.folder / "smoothed.gguf"
        # With the factors themselves, the last bit of a float would show as much as a wrong fold:
        # the runtime rounds to F16 in between (its cache, its table of GELU).
        convert.write_float(self.args.input, smoothed, smoothing.powers_of_two(), everything)
        found = self.proof.largest_difference(smoothed)
        smoothed.unlink()
        _say(f"{smoothing.label} in float: logits differ by {found:.2g} of the largest")
        if not found <= PROOF_LIMIT:
            raise _NotPossible(
                f"{self.args.input}: smoothing by {smoothing.label} changes the float model: "
                f"logits differ by {found:.2g} of the largest, {PROOF_LIMIT:g} is allowed: this "
                "model uses its norms or its FFN in another way; convert it with --smooth none"
            )
        self.proved.append((smoothing, found))
        return found

    def _pairs(self) -> Smoothing:
        return up_down_smoothing(self.pairs, self.importance, self.treatment, self.magnitudes)

    def _norms(self, tenths: float) -> Smoothing:
        return norm_smoothing(
            *(self.norms, self.importance, round(tenths / 10, 6)), self.treatment, self.magnitudes
        )

    def _search_alpha(self, best: Smoothing, kl: float, under: Smoothing, first: Smoothing):
        """The alpha with the lowest KL, downhill from the middle; others are joined to `under`."""
        if self.alpha is not None:
            return self._better(best, kl, under.joined(first))
        known: dict[int, tuple[Smoothing, float]] = {}

        def at(tenths: int) -> float:
            if tenths not in known:
                smoothing = under.joined(first if tenths == _FIRST else self._norms(tenths))
                known[tenths] = smoothing, self._kl(smoothing)
            return known[tenths][1]

        here, lowest = _FIRST, at(_FIRST)
        for step in (_STEP, -_STEP):
            while _LOWEST <= here + step <= _HIGHEST and at(here + step) < lowest:
                here += step
                lowest = at(here)
        return (known[here][0], lowest) if lowest < kl else (best, kl)

    def _better(self, best: Smoothing, kl: float, other: Smoothing):
        found = self._kl(other)
        return (other, found) if found < kl else (best, kl)

    def _kl(self, smoothing: Smoothing) -> float:
        path = self.folder / "candidate.gguf"
        convert.convert(
            *(self.args.input, path),
            **self.options,
            smoothing=smoothing,
            force=True,
            progress=sys.stderr.isatty(),
        )
        kl = self.yardstick.kl(path)
        path.unlink()
        tried = {"method": smoothing.label, "alpha": smoothing.alpha, "kl": kl}
        self.choice.tried.append(tried)
        _say(describe(tried))
        return kl

    def _statistics(self) -> str:
        """The file with the ranges: the one given, or one measured on the calibration text."""
        from .commands import calibrate

        path = self.folder / "stats.gguf"
        given = self.options.get("imatrix")
        if given is not None:
            with Importance(given) as importance:
                if importance.has_ranges:
                    return given
        calibrate.measure(self.args.input, self.args.calibration, path, tokens=CALIBRATION_TOKENS)
        return path


def describe(tried: dict) -> str:
    """One candidate in a line."""
    name = tried["method"] if tried["method"] != "none" else "no smoothing"
    alpha = "" if tried["alpha"] is None else f", alpha {tried['alpha']:g}"
    return f"{name}{alpha}: mean KL {tried['kl']:.6f}"


def _say(text: str) -> None:
    if sys.stderr.isatty():
        print(f"octet: {text}", file=sys.stderr)
