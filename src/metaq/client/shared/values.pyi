# `typing` has defaults of type variables from Python 3.13 on. Type checkers know those of typing_extensions, which need not be installed.
from typing import Any

from typing_extensions import TypeVar

Value = TypeVar("Value", default=Any)  # noqa: PYI001  imported by others
Sent_contra = TypeVar("Sent_contra", contravariant=True, default=Any)  # noqa: PYI001  imported by others
Received_co = TypeVar("Received_co", covariant=True, default=Any)  # noqa: PYI001  imported by others
