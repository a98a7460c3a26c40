"""What all tests share: the devices, and the flag that writes golden files anew."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from autofuse.devices.base import Device
from autofuse.devices.cpu import CpuDevice
from autofuse.devices.cuda import CudaDevice
from autofuse.devices.emulated import EmulatedCudaDevice
from autofuse.errors import ToolchainError
from tests import guarded

DEVICES: dict[str, Callable[[], Device]] = {
    "cpu": lambda: CpuDevice(threads=2),
    "cuda-emulated": lambda: EmulatedCudaDevice("sm_80"),
    "cuda": lambda: CudaDevice(),
}
"""Every device; tests on one that is not here are reported as skipped, with what is missing."""


def opened(name: str) -> Device:
    """A device by name; the test is skipped where it is a GPU and there is none."""
    try:
        return DEVICES[name]()
    except ToolchainError as e:
        if name != "cuda":
            raise
        pytest.skip(f"no GPU: {e}")


@pytest.fixture(autouse=True, scope="session")
def guarded_memory() -> Iterator[None]:
    """A kernel that leaves its buffers crashes the tests, wherever they run it."""
    with pytest.MonkeyPatch.context() as patch:
        guarded.install(patch)
        yield


@pytest.fixture(params=list(DEVICES), scope="session")
def device(request: pytest.FixtureRequest) -> Device:
    """Each device in turn."""
    return opened(request.param)


@pytest.fixture(scope="session")
def cpu() -> Device:
    """The host."""
    return opened("cpu")


@pytest.fixture(scope="session")
def emulated() -> Device:
    """The CUDA text on the host."""
    return opened("cuda-emulated")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the golden files from what the code gives now")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[Path, str], None]:
    """Compare a text with a golden file, or write it there under --update-golden."""

    def check(path: Path, text: str) -> None:
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        assert text == path.read_text(), f"{path.name} differs; if that is meant, run pytest --update-golden"

    return check
