"""The final models of a study's devices: one safetensors file each, and one hash over all."""

from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

from broker_server.study.checkpoint import load_checkpoint, save_checkpoint
from edge_client.model.trainer import ModelState


def save_model(path: Path, state: ModelState, device: str, run: str) -> None:
    """Write a device's final parameters, atomically."""
    save_checkpoint(path, {"parameters": state.parameters}, {"device": device, "run": run, "epochs": str(state.epochs)})


def state_sha256(models: Iterable[Path]) -> str:
    """Return the SHA-256 over all final parameters, in the given (device) order."""
    whole = sha256()
    for path in models:
        arrays, _ = load_checkpoint(path)
        whole.update(arrays["parameters"].tobytes())
    return whole.hexdigest()
