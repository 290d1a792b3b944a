"""Quantities as people read them: kB = 1000 bytes, MiB = 1024 x 1024."""


def bytes_text(count: float) -> str:
    """Return a size with a decimal unit and three significant digits."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5 or unit == "GB":  # from there on, three digits would say 1000
            break
        count /= 1000
    return f"{count:.0f} {unit}" if unit == "B" or count >= 999.5 else f"{count:.3g} {unit}"


def duration_text(seconds: float) -> str:
    """Return a duration in the unit that suits it."""
    if seconds < 120:
        return f"{seconds:.1f} s"
    if seconds < 7200:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.1f} days"


def share_text(value: float | None, unit: str = " %") -> str:
    """Return a fraction in percent; "-" where there is none. `unit` is empty where the column says it."""
    return "-" if value is None else f"{100 * value:.2f}{unit}"


LINK_UNITS = {
    "up": "bit/s", "down": "bit/s", "rtt": "s", "jitter": "s", "loss": "per segment", "mss": "bytes a segment",
    "header": "bytes a segment", "duty_cycle": "of the time", "half_duplex": "", "price": "EUR/MB",
}  # fmt: skip
RADIO_UNITS = {"transmit": "W", "receive": "W", "idle": "W", "sleep": "W", "tail": "W", "tail_seconds": "s"}
HARDWARE_UNITS = {
    "cores": "", "clock": "Hz", "memory": "bytes", "slowdown": "x Pi 5", "training_flops": "FLOP/s",
    "hpl_flops": "FLOP/s", "idle_power": "W", "active_power": "W",
}  # fmt: skip
"""The figures of a profile, in the order in which they are shown."""
