"""Errors that a user can act on: one line that says what was given, what was expected and what to do.

Commands print that line and exit with the code of the error; a traceback is a defect.
"""


class UserError(Exception):
    """A mistake in input, configuration or environment; command lines print it without a traceback.

    Attributes:
      exit_code: of a command that ends with it.
    """

    exit_code = 2


class DataError(UserError):
    """A corpus, document or vocabulary that cannot be used; names the file and, where there is one, the line."""


class ConfigError(UserError):
    """A configuration that contradicts itself, the run directory or the machine."""


class RunError(UserError):
    """A run directory that is missing, half written or written for another model."""


class StorageError(RunError):
    """A bucket that a training has used does not answer any more: nobody's mistake, and starting again may help."""

    exit_code = 43
