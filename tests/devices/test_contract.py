"""The contract of devices, on each device that can run here (the list is in tests/conftest.py)."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from contract import F32, N, broken, chain, chain_expected, kernel, single

from autofuse.devices.base import BufferRef, Compiled, Device, Executable, Launch
from autofuse.errors import AutofuseError, InputError, LaunchError, UsageError

RNG = np.random.default_rng(17)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def timed(executable: Executable) -> bool:
    """Whether the device measures at all; one that does not says so."""
    try:
        executable.time(1)
    except UsageError:
        return False
    return True


def check(outputs: list[np.ndarray], x: np.ndarray) -> None:
    for found, expected in zip(outputs, chain_expected(x), strict=True):
        assert found.shape == expected.shape and found.dtype == np.float32
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


def test_run(device: Device) -> None:
    executable = device.load(chain())
    for _ in range(3):
        x = normal(4, N // 4)
        check(executable.run([x]), x)
    executable.close()


def test_outputs_belong_to_the_caller(device: Device) -> None:
    """Later runs, and closing the program, do not change what was given out; inputs are never written."""
    executable = device.load(chain())
    xs = [normal(4, N // 4) for _ in range(4)]
    before = [x.copy() for x in xs]
    outputs = [executable.run([x]) for x in xs]
    executable.bind([xs[0]])
    executable.close()
    for x, was, out in zip(xs, before, outputs, strict=True):
        np.testing.assert_array_equal(x, was)
        check(out, x)
        assert all(o.flags.writeable and o.flags.c_contiguous for o in out)


def test_misaligned_inputs(device: Device) -> None:
    executable = device.load(chain())
    for shift in range(0, 64, 4):
        raw = np.zeros(4 * N + 128, np.uint8)
        x = raw[shift : shift + 4 * N].view(np.float32).reshape(4, N // 4)
        x[:] = normal(4, N // 4)
        check(executable.run([x]), x)
    executable.close()


def test_bind_and_measure(device: Device) -> None:
    program = chain()
    executable = device.load(program)
    x, other = normal(4, N // 4), normal(4, N // 4)
    executable.bind([x])
    if timed(executable):
        times = executable.time(5)
        stamps = executable.stamps(4)
        assert len(times) == 5 and all(isinstance(t, int) and t > 0 for t in times)
        assert stamps.shape == (4, len(program.launches)) and stamps.dtype == np.int64 and (stamps >= 0).all()
        check(executable.run([other]), other)  # a run in between does not unbind
        assert executable.time(1)[0] > 0
    executable.close()


def test_measuring_needs_bound_inputs(device: Device) -> None:
    executable = device.load(chain())
    for measure in (executable.time, executable.stamps):
        with pytest.raises(AutofuseError):
            measure(1)
    executable.close()


def test_several_programs_live_side_by_side(device: Device) -> None:
    one, two = device.load(chain()), device.load(chain())
    third = device.load(single(kernel("sub", 1.0)))
    x = normal(4, N // 4)
    check(one.run([x]), x)
    check(two.run([x]), x)
    one.close()
    check(two.run([x]), x)
    np.testing.assert_array_equal(third.run([x.reshape(-1)])[0], x.reshape(-1) - 1)
    two.close()
    third.close()


def test_closing_twice_does_no_harm(device: Device) -> None:
    executable = device.load(chain())
    executable.close()
    executable.close()


def test_a_bad_kernel_does_not_lose_the_batch(device: Device) -> None:
    good = [kernel("add", 1.25), kernel("mul", 3.5)]
    first, bad, second = device.compile([good[0], broken(), good[1]])
    assert isinstance(bad, AutofuseError) and "broken" in str(bad)
    for made, k in zip((first, second), good, strict=True):
        assert isinstance(made, Compiled)
        assert device.text(k) and made.text and len(made.key) == 64
    with pytest.raises(AutofuseError):
        device.load(single(broken()))


def test_equal_kernels_are_compiled_once(device: Device) -> None:
    first, again, other = device.compile([kernel("add", 2.5), kernel("add", 2.5), kernel("add", 2.75)])
    assert isinstance(first, Compiled) and isinstance(again, Compiled) and isinstance(other, Compiled)
    assert first.key == again.key != other.key
    cached = device.compile([kernel("add", 2.5)])[0]
    assert isinstance(cached, Compiled) and cached.resources.seconds == 0.0


def test_wrong_inputs_are_refused(device: Device) -> None:
    executable = device.load(chain())
    x = normal(4, N // 4)
    for wrong in ([], [x, x], [x.T.copy()], [x.astype(np.float64)]):
        with pytest.raises(InputError):
            executable.run(wrong)
    check(executable.run([x]), x)
    executable.close()


def test_arguments_outside_their_place_are_refused(device: Device) -> None:
    program = single(kernel("add", 1.0))
    for ref in (BufferRef("output", 0, 64), BufferRef("output", 0, -64)):
        launch = Launch(program.launches[0].kernel, (BufferRef("input", 0), ref))
        with pytest.raises(LaunchError):
            device.load(dataclasses.replace(program, launches=(launch,)))


def test_writes_at_an_unaligned_offset_are_refused(device: Device) -> None:
    program = single(kernel("add", 1.0))
    launch = Launch(program.launches[0].kernel, (BufferRef("input", 0), BufferRef("arena", 0, 4)))
    with pytest.raises(LaunchError):
        device.load(dataclasses.replace(program, launches=(launch,), arena_bytes=4096))


def test_an_empty_program(device: Device) -> None:
    program = dataclasses.replace(chain(), launches=(), outputs=())
    executable = device.load(program)
    assert executable.run([normal(4, N // 4)]) == []
    executable.close()


def test_the_target_names_its_device(device: Device) -> None:
    t = device.target
    assert t.kind in ("cpu", "cuda", "cuda-emulated") and t.arch and device.threads >= 1
    assert t.lanes(F32.itemsize) >= 4
