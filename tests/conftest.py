"""Being here puts tests/ on the import path: `import models` and `import reference` work below."""

import signal

# What a shell runs in the background has interrupts ignored, and so would have the programs that
# the tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
