"""`octet convert`: the work is in gguf_tools."""

from ..gguf_tools.convert import add_arguments, render, run

__all__ = ["EXAMPLE", "HELP", "add_arguments", "render", "run"]

HELP = "Convert a GGUF model to rotated int8 (and its experts to codebook types)."
EXAMPLE = "octet convert model-f16.gguf model-int8.gguf"
