"""Studies as TensorBoard's event files, one folder each, by PyTorch's own writer.

A point's time is the run's beginning and its own clock: "relative" in TensorBoard shows seconds on the link.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from edge_client.errors import EnvironmentFault
from sim.export.series import Exported


def write(studies: Sequence[Exported], folder: str) -> list[str]:
    """Write each study into a folder of its own below `folder`; return what was written, in lines.

    Raises:
        EnvironmentFault: a folder holds something already, or cannot be written.
        ModuleNotFoundError: TensorBoard is not installed.
    """
    from torch.utils.tensorboard import SummaryWriter

    places = [Path(folder) / one.name for one in studies]
    for place in places:
        if place.exists():
            raise EnvironmentFault(f"{place}: is there already; delete it, or give another folder as --output")
    for one, place in zip(studies, places, strict=True):
        try:
            place.mkdir(parents=True)
        except OSError as error:
            raise EnvironmentFault(
                f"{place}: {error.strerror}; give a folder that can be written as --output"
            ) from None
        with SummaryWriter(str(place)) as writer:
            for point in one.scalars:
                writer.add_scalar(point.name, point.value, point.step, walltime=one.began + point.seconds)
            writer.add_text("settings", _table(one.settings), walltime=one.began)
            writer.add_hparams(dict(one.settings), dict(one.totals), run_name=".")
    return [*map(str, places), f"look at it: tensorboard --logdir {folder}"]


def _table(settings: Mapping[str, str]) -> str:
    """Return Markdown, which TensorBoard shows as a table."""
    return "\n".join(["| key | value |", "|---|---|", *(f"| {key} | {value} |" for key, value in settings.items())])
