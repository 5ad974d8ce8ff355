"""What can go wrong, as exceptions whose message is one line for the user."""

from .gguf_tools.errors import OctetError, UsageError

__all__ = ["ModelError", "OctetError", "UsageError", "one_line"]


class ModelError(OctetError, ValueError):
    """A model that cannot be loaded.

    Also a `ValueError`, because that is what `llama_cpp.Llama` raises, and code that catches it
    should go on working.
    """


def one_line(text: object) -> str:
    """The text without line breaks or runs of blanks."""
    return " ".join(str(text).split())
