"""Ending when asked to, with nothing half-written left."""

import contextlib
import signal
import threading

from .errors import OctetError

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def stoppable():
    """Let a polite request to end (SIGTERM, SIGHUP) clean up first, like Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers
        return

    def stop(number, frame):
        raise OctetError(f"stopped by {signal.Signals(number).name}; nothing was written")

    before = {n: signal.signal(n, stop) for n in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def postponed():
    """Let requests to end wait until the block is done; a list of those that came so far.

    For a block in which a library calls Python back. What a signal's handler raises in there is
    lost, and it is in there that Python gets to run handlers.
    """
    came: list[int] = []
    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in _SIGNALS:
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                before[number] = signal.signal(number, lambda number, frame: came.append(number))
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if came:  # also instead of an error, which may be the block's way to stop
            signal.raise_signal(came[0])
