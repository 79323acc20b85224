"""The compiled extension: `_native` where it was built, else its pure-Python fallback. `METAQ_HOT=0` takes the
fallback. Contract: __init__.pyi."""

from metaq.compiled import compiled

_native, _why = compiled("metaq.wire.hot._native")
NATIVE = _native is not None
if NATIVE:
    from metaq.wire.hot._native import *  # type: ignore[import-not-found]  # noqa: F403  built by setup.py, __init__.pyi lists the names

    WHY = "native, built by Cython"
else:
    from metaq.wire.hot.fallback import *  # noqa: F403  __init__.pyi lists the names

    if _why is None:
        WHY = "plain Python, because METAQ_HOT=0 is set"
    else:
        WHY = f"plain Python, about six times slower: the native module is not built ({_why})"
