"""What can go wrong, told apart by who has to act on it."""


class MdlError(Exception):
    """Base of every error that mdl raises on purpose; its text is one line for the user."""

    exit_code = 4


class LocalProtocolError(MdlError):
    """We broke the rules: a bug. Nobody catches it; the process stops."""


class RemoteProtocolError(MdlError):
    """A peer broke the rules: count it, drop the message, carry on."""


class ConfigError(MdlError):
    """The user's configuration is wrong: names the key, the value and what would be valid."""

    exit_code = 2


class DataError(MdlError):
    """The user's data is wrong: names the file and line, the value and what would be valid."""

    exit_code = 2


class MeshNotFoundError(MdlError):
    """No mesh, no agent or no peers where the user expected some."""

    exit_code = 3


class TrainingCancelledError(MdlError):
    """The user stopped this process in the middle of its training; nothing of it is used."""
