"""The few exceptions of the project, told apart by what the reader of the message can do about them.

Every message is one line for a person: what went wrong, where, and the mend.
"""


class GcaError(Exception):
    """A run failed for a reason that its message explains. Exit code 1."""

    exit_code = 1


class ConfigError(GcaError):
    """An argument or a configuration value is wrong; the user changes it. Exit code 2."""

    exit_code = 2


class EnvironmentFault(GcaError):
    """The machine lacks something: a file, a package, memory, a reachable broker. Exit code 3."""

    exit_code = 3


class ProtocolError(GcaError):
    """A peer sent bytes that break the protocol; the message is refused and counted, the receiver goes on."""


class ConnectionLost(GcaError):
    """The transport broke; a new connection may succeed."""


def in_words(error: BaseException) -> str:
    """Return one line about an error: its message, with its type unless it is one of ours."""
    return str(error) if isinstance(error, GcaError) else f"{type(error).__name__}: {error}"


def pip_install(extra: str = "") -> str:
    """Return the command that brings what an extra needs; from a clone, since no package index has this project."""
    return "pip install " + (f"'.[{extra}]'" if extra else ".") + " in gca's folder"
