"""What the commands that do without Typer have in common: a parser whose complaints are ours, and who one is at a
broker."""

import argparse
from typing import NoReturn

from edge_client.errors import ConfigError


class Parser(argparse.ArgumentParser):
    """Raises `ConfigError` for what it does not understand; shows the examples as they are written."""

    def __init__(self, prog: str, description: str, examples: str) -> None:
        layout = argparse.RawDescriptionHelpFormatter
        super().__init__(prog=prog, description=description, epilog=examples, formatter_class=layout)

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see {self.prog} --help")


def add_credentials(command: argparse.ArgumentParser, username: str) -> None:
    """Add the options that say who this client is; `username` is the help of that one."""
    add = command.add_argument
    add("--username", help=username)
    add("--ca-file", metavar="FILE", help="PEM file of the CA that signed the broker's certificate")
    add("--cert", metavar="FILE", help="PEM file of a certificate for brokers that ask who we are")
    add("--key", metavar="FILE", help="PEM file of its key")
