"""Errors that a user can act on: one line that says what was given, what was expected and what to do."""


class UserError(Exception):
    """A mistake in input, configuration or environment; command lines print it without a traceback."""


class DataError(UserError):
    """A corpus, document or vocabulary that cannot be used; names the file and, where there is one, the line."""


class ConfigError(UserError):
    """A configuration that contradicts itself, the run directory or the machine."""


class RunError(UserError):
    """A run directory that is missing, half written or written for another model."""
