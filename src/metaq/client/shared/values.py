"""Type variables of the values that serializers make bodies of. For type checkers each defaults to Any: see `values.pyi`."""

from typing import TypeVar

Value = TypeVar("Value")
Sent_contra = TypeVar("Sent_contra", contravariant=True)
"""What a producer takes."""
Received_co = TypeVar("Received_co", covariant=True)
"""What a consumer's messages hold."""
