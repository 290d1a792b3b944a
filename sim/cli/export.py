"""`gca export`: studies for TensorBoard or MLflow."""

from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer


class Tool(StrEnum):
    """What can read an export; each has a module in `sim/export` and an extra of this name."""

    TENSORBOARD = "tensorboard"
    MLFLOW = "mlflow"


FOLDERS = {Tool.TENSORBOARD: "tensorboard", Tool.MLFLOW: "mlflow"}


def export(
    studies: Annotated[list[Path], typer.Argument(help="folders of studies", show_default=False)],
    to: Annotated[Tool, typer.Option(help="the tool to write for")],
    output: Annotated[
        str | None, typer.Option(help="folder (default: tensorboard or mlflow), or an MLflow server's address")
    ] = None,
) -> None:
    """Write studies for TensorBoard or MLflow.

    Accuracy over epochs, rounds, bytes, seconds and joules, and the configuration as parameters.

    Example: gca export studies/one studies/two --to tensorboard

    Example: gca export studies/compare/* --to mlflow --output http://127.0.0.1:5000
    """
    from edge_client.errors import EnvironmentFault, pip_install
    from sim.export.series import exported

    where = output or FOLDERS[to]
    found = exported(studies)
    try:
        written = import_module(f"sim.export.{to}").write(found, where)
    except ModuleNotFoundError as error:
        raise EnvironmentFault(f"--to {to} needs {error.name}, which is not installed: {pip_install(to)}") from None
    print("\n".join(written))
