"""The error that a user sees: one line saying what is wrong, with what, and what to do."""


class OctetError(Exception):
    """A failure that is explained in one line. `exit_code` is what the command ends with."""

    exit_code = 1

    def __init__(self, message: str):
        """Keep `message` as one line."""
        super().__init__(" ".join(str(message).split()))


class UsageError(OctetError):
    """The command or the call was given something that it cannot accept (exit code 2)."""

    exit_code = 2


def shown(name: str, limit: int = 80) -> str:
    """`name` fit for a message: control characters escaped, very long ones cut."""
    text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(name))
    return text if len(text) <= limit else text[: limit - 1] + "…"
