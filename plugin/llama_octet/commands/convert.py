"""`octet convert`: the work is in gguf_tools; a smoothing is chosen here, by running models."""

import argparse

from .. import smoothing
from ..gguf_tools import convert_command
from ..gguf_tools.convert import check_target
from ..gguf_tools.stopping import stoppable

HELP = "Convert a GGUF model to rotated int8 (and its experts to codebook types)."
EXAMPLE = "octet convert model-f16.gguf model-int8.gguf"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    convert_command.add_arguments(parser)
    add = parser.add_argument
    add(
        *("--smooth",),
        metavar="METHOD",
        default="none",
        help="|".join(smoothing.METHODS) + ": move scale from activations to weights. smoothquant: "
        "behind norms; updown: between up and down projections. It stays out where it does not "
        "lower the KL measured on --calibration; auto tries both (default none)",
    )
    add("--alpha", metavar="X|search", help="strength of smoothquant, 0 to 1 (default search)")
    add("--calibration", metavar="TEXT", help="text file that smoothing is measured on")


def run(args: argparse.Namespace) -> dict:
    """Convert, after choosing a smoothing if one is wanted."""
    alpha = smoothing.check(args.smooth, args.alpha, args.calibration)
    if args.smooth == "none":
        return convert_command.run(args)
    options = convert_command.options(args)
    force = options.pop("force")
    check_target(args.input, args.output, force)
    options.pop("progress")
    with stoppable():
        choice = smoothing.choose(args, options, alpha)
    result = convert_command.run(args, smoothing=choice.smoothing)
    result["smoothing"] = choice.told()
    result["notes"] = choice.notes + result["notes"]
    return result


def render(result: dict) -> str:
    """The result as a short text."""
    lines = [convert_command.render(result)]
    told = result["smoothing"]
    if isinstance(told, dict):
        for tried in told["tried"]:
            lines.append(f"  {smoothing.describe(tried)} on {told['positions']} positions")
        if told["logit_difference"] is not None:
            lines.append(
                f"  smoothed by {told['method']}: logits of the float model differ by "
                f"{told['logit_difference']:.2g} of the largest"
            )
    return "\n".join(lines)
