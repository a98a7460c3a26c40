"""NVIDIA's driver."""

from __future__ import annotations

import re
from pathlib import Path


def driver_version() -> str:
    """The version of NVIDIA's driver; "none" where there is none."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return "none"
    match = re.search(r"\b(\d+\.\d+(?:\.\d+)?)\b", text)
    return match[1] if match else "unknown"
