"""What an engine writes down of its launches."""

from __future__ import annotations

from dataclasses import dataclass

from autofuse.devices.base import Launch


@dataclass(frozen=True)
class Launched:
    """A line of the launch log: a kernel by its family, or an operator that ran in onnx's reference evaluator."""

    what: str
    host: bool


@dataclass(frozen=True)
class Counted:
    """A launch of an engine: the position of its region in the plan, and how often it was made in the last run.

    Launches inside branches and bodies stand under the position of their control-flow node; before the first run each counts once.
    """

    launch: Launch
    position: int
    times: int
