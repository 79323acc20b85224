"""`pyarrow.compute`, imported when one of its functions is first called.

It wraps some 300 functions when it is imported, which takes longer than all of this package. What plans a query of Spark
calls none of them, nor does what reads plain columns.
"""

from __future__ import annotations

from typing import Any


class _Compute:
    def __getattr__(self, name: str) -> Any:
        import pyarrow.compute

        function = getattr(pyarrow.compute, name)
        setattr(self, name, function)  # Asked for it again, Python finds it without calling this.
        return function


compute: Any = _Compute()
"""Has every function of `pyarrow.compute`."""
