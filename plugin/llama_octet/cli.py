"""The `octet` command: picks the subcommand, and turns every failure into one line."""

import argparse
import importlib
import json
import os
import sys

from . import __version__
from .errors import OctetError, one_line

COMMANDS = ("convert", "run", "inspect", "calibrate", "eval", "bench", "doctor", "demo")


class Parser(argparse.ArgumentParser):
    """argparse, with errors in one line."""

    def error(self, message):
        """Say what is wrong and end with 2."""
        self.exit(2, f"octet: {one_line(message)} (see {self.prog} --help)\n")


def parser(argv: list[str]) -> argparse.ArgumentParser:
    """The command line: that of the one subcommand that `argv` names, or of all for an overview."""
    top = Parser(
        prog="octet",
        description="int8 inference for GGUF models in an unmodified llama-cpp-python.",
        epilog="example: octet demo",
        allow_abbrev=False,
    )
    top.add_argument("--version", action="version", version=f"octet {__version__}")
    # Without a common base the subcommands would be argparse's own class again.
    below = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    named = next((word for word in argv if not word.startswith("-")), None)
    for name in [named] if named in COMMANDS else COMMANDS:
        module = importlib.import_module(f".commands.{name}", __package__)
        sub = below.add_parser(
            name,
            help=module.HELP,
            description=module.HELP,
            epilog="example: " + module.EXAMPLE,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        module.add_arguments(sub)
        if not any("--json" in action.option_strings for action in sub._actions):
            sub.add_argument(
                "--json", action="store_true", help="print the result as JSON, and only that"
            )
        sub.set_defaults(module=module)
    return top


def main(argv: list[str] | None = None) -> int:
    """Run the command; the exit code: 0 done, 1 failed, 2 wrong usage."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # A model can write any character; a terminal that lacks one gets a substitute.
            stream.reconfigure(errors="backslashreplace" if stream is sys.stderr else "replace")
    argv = sys.argv[1:] if argv is None else argv
    try:
        arguments = parser(argv).parse_args(argv)
        result = arguments.module.run(arguments)
        if arguments.json:
            print(json.dumps(result, indent=2))
        else:
            text = arguments.module.render(result)
            if text:
                print(text)
        sys.stdout.flush()
        return arguments.module.exit_code(result) if hasattr(arguments.module, "exit_code") else 0
    except KeyboardInterrupt:
        return _complain("interrupted", 130)
    except BrokenPipeError:
        # Whoever read our output has left. The interpreter would flush again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OctetError as why:
        return _complain(why, why.exit_code)
    except OSError as why:
        where = f"{why.filename}: " if why.filename else ""
        return _complain(f"{where}{why.strerror or why}", 1)
    except MemoryError:
        return _complain("out of memory", 1)
    except Exception as why:
        return _complain(
            f"unexpected {type(why).__name__}: {why} (OCTET_DEBUG=1 shows where)",
            1,
        )


def _complain(message: object, code: int) -> int:
    if os.environ.get("OCTET_DEBUG") == "1" and code != 130:
        import traceback

        traceback.print_exc()
    try:
        print(f"octet: {one_line(message)}", file=sys.stderr)
    except BrokenPipeError:
        pass
    return code


if __name__ == "__main__":
    sys.exit(main())
