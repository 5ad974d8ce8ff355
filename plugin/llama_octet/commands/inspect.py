"""`octet inspect`: gguf_tools reads the file, the backend says where each tensor would run."""

import contextlib
import sys

from .. import header, registration
from ..errors import OctetError
from ..gguf_tools.inspect import add_arguments
from ..gguf_tools.inspect import render as table
from ..gguf_tools.inspect import run as inspect
from ..library import USUAL_CONTEXT

__all__ = ["EXAMPLE", "HELP", "add_arguments", "render", "run"]

HELP = "List a model's tensors: type, shape, rotation, scales, and which path runs each and why."
EXAMPLE = "octet inspect model-int8.gguf"


def run(args):
    """Inspect, with the backend's decisions if the backend can be loaded.

    Adds "layout": {"layout", "reason"}, what would become of the weights if `llama_octet.Llama`
    loaded it now, with the context that it makes unless it is told another.
    """
    found = header.read(args.model)  # its one line, before anybody else opens the file
    with contextlib.ExitStack() as stack:
        path_of, layout = None, None
        try:
            library = registration.load().library
            library.model_begin(args.model, found, context=USUAL_CONTEXT)
            stack.callback(library.model_end)
            path_of, layout = library.decide, library.layout()
        except OctetError as why:
            # The file can be shown all the same.
            print(f"octet: paths are not shown: {why}", file=sys.stderr)
        result = inspect(args, path_of)
    return result if layout is None else {**result, "layout": layout}


def render(result) -> str:
    """The table, and the layout in a line below it."""
    layout = result.get("layout")
    return table(result) + (f"\nlayout: {layout['layout']} ({layout['reason']})" if layout else "")
