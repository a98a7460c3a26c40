"""The exceptions that autofuse raises on purpose.

Every message says what is wrong, where, what was found and what to do next. The exit code of the
command line is a property of the exception's type, so that no text is ever matched.
"""

from __future__ import annotations

from typing import ClassVar


class AutofuseError(Exception):
    """Base of every error that autofuse raises on purpose (exit code 1: the work failed)."""

    exit_code: ClassVar[int] = 1


class UsageError(AutofuseError):
    """The caller asked for something that does not exist or does not fit (exit code 2)."""

    exit_code: ClassVar[int] = 2


class ModelError(UsageError):
    """The model file cannot be read, or is not a model that can be run."""


class ShapeError(UsageError):
    """A dimension is unbound, or a given shape contradicts the model."""


class InputError(UsageError):
    """An input at run time has a wrong name, type or shape."""


class SearchSpaceError(UsageError):
    """A search-space file has an unknown key or a malformed constraint."""


class MismatchError(AutofuseError):
    """Numbers or a plan do not match (exit code 3)."""

    exit_code: ClassVar[int] = 3


class PlanError(MismatchError):
    """A plan does not fit the model or the device, or its file is damaged."""


class ToolchainError(AutofuseError):
    """A compiler, driver or optional package that is needed is missing."""


class CompileError(AutofuseError):
    """A compiler refused a kernel's text."""


class LaunchError(AutofuseError):
    """A compiled kernel could not be run."""


class StorageError(AutofuseError):
    """A result, record or cache cannot be written or read."""


class VerificationError(AutofuseError):
    """An intermediate representation breaks one of its own rules: a fault in autofuse itself."""
