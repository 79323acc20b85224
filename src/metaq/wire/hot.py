"""The hot module: `_hot` where it was built, else its plain twin. `METAQ_HOT=0` takes the twin. Contract: hot.pyi."""

import os

if os.environ.get("METAQ_HOT", "1") == "0":
    from metaq.wire._hot_py import *  # noqa: F403  hot.pyi lists the names

    NATIVE = False
    WHY = "plain Python, because METAQ_HOT=0 is set"
else:
    try:
        from metaq.wire._hot import *  # type: ignore[import-not-found]  # noqa: F403  built by setup.py, hot.pyi lists the names
    except ImportError as error:
        from metaq.wire._hot_py import *  # noqa: F403  hot.pyi lists the names

        NATIVE = False
        WHY = f"plain Python, about six times slower: the native module is not built ({error})"
    else:
        NATIVE = True
        WHY = "native, built by Cython"
