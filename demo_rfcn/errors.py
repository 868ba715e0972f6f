# SPDX-License-Identifier: Apache-2.0
"""The exceptions that a command reports as one sentence instead of a traceback."""


class InputError(ValueError):
    """Invalid input by the user; the message names it and what was expected."""


class BrokenFile(InputError):
    """One file of a data set cannot be used; the message begins with its path."""


class LostImage(InputError):
    """An image was complete when the data set was opened, and no longer is."""


class CheckpointError(InputError):
    """A checkpoint is missing, damaged, or of another configuration."""


class RunError(Exception):
    """A run cannot continue for a reason other than the user's input; the message says why.

    There is no message if a process of the run has already printed it.
    """

    status = 1


class Interrupted(Exception):
    """A signal stopped the run after it had written a checkpoint."""


class OutputError(OSError):
    """A file cannot be written; the message names it and the reason."""


def reason(error: BaseException) -> str:
    """Return the last line of an error; MXNet's errors begin with a C++ traceback."""
    lines = str(error).strip().splitlines()
    return lines[-1].replace("MXNetError: ", "") if lines else type(error).__name__
