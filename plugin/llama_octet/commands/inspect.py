"""`octet inspect`: gguf_tools reads the file, the backend says where each tensor would run."""

import contextlib
import sys

from .. import header, registration
from ..errors import OctetError
from ..gguf_tools.inspect import add_arguments, render
from ..gguf_tools.inspect import run as inspect

__all__ = ["EXAMPLE", "HELP", "add_arguments", "render", "run"]

HELP = "List a model's tensors: type, shape, rotation, scales, and which path runs each and why."
EXAMPLE = "octet inspect model-int8.gguf"


def run(args):
    """Inspect, with the backend's decisions if the backend can be loaded."""
    found = header.read(args.model)  # its one line, before anybody else opens the file
    with contextlib.ExitStack() as stack:
        path_of = None
        try:
            library = registration.load().library
            library.model_begin(args.model, found)
            stack.callback(library.model_end)
            path_of = library.decide
        except OctetError as why:
            # The file can be shown all the same.
            print(f"octet: paths are not shown: {why}", file=sys.stderr)
        return inspect(args, path_of)
