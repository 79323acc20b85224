"""The hot module: `_hot` where it was built, else its plain twin. `METAQ_HOT=0` takes the twin. Contract: hot.pyi."""

from metaq.compiled import compiled

_native, _why = compiled("metaq.wire._hot")
NATIVE = _native is not None
if NATIVE:
    from metaq.wire._hot import *  # type: ignore[import-not-found]  # noqa: F403  built by setup.py, hot.pyi lists the names

    WHY = "native, built by Cython"
else:
    from metaq.wire._hot_py import *  # noqa: F403  hot.pyi lists the names

    if _why is None:
        WHY = "plain Python, because METAQ_HOT=0 is set"
    else:
        WHY = f"plain Python, about six times slower: the native module is not built ({_why})"
