"""Builds the compiled modules where a C compiler is found; without one plain Python serves."""

import os
import sys
from pathlib import Path

from setuptools import Extension, setup

FLAGS = ["-O3", "-g0"]
LINK: list[str] = []
if os.environ.get("METAQ_BUILD_SANITIZED", "0") != "0":
    # `make test-sanitized`, in a tree of its own. Undefined behaviour ends the process. Python compiles its extensions with
    # -fwrapv, under which an overflow is defined and would not be seen; what nobody relies on is looked for all the same.
    FLAGS = ["-O1", "-g1", "-fno-omit-frame-pointer", "-fno-wrapv", "-UNDEBUG"]
    LINK = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
    FLAGS += LINK

HOT = Path("src/metaq/wire/hot")
extensions = []
if os.environ.get("METAQ_BUILD_HOT", "1") != "0":
    try:
        from Cython.Build import cythonize
    except ImportError:
        pass
    else:
        hot = Extension(
            "metaq.wire.hot._native",
            ["src/metaq/wire/hot/_native.pyx"],
            depends=sorted(map(str, [*HOT.glob("_*.h"), *HOT.glob("native/*.pxi")])),
            include_dirs=["src/metaq/wire/hot"],
            extra_compile_args=[*FLAGS, "-fno-strict-aliasing"],
            extra_link_args=LINK,
        )
        sweep = Extension(
            "metaq.net._sweep", ["src/metaq/net/_sweep.pyx"], extra_compile_args=FLAGS, extra_link_args=LINK
        )
        syncing = Extension(
            "metaq.store.log._syncing",
            ["src/metaq/store/log/_syncing.pyx"],
            depends=["src/metaq/store/log/_syncing_c.h"],
            include_dirs=["src/metaq/store/log"],
            extra_compile_args=FLAGS,
            extra_link_args=LINK,
        )
        linux = [sweep, syncing] if sys.platform == "linux" else []  # epoll, eventfd
        extensions = cythonize([hot, *linux], language_level=3)
        for extension in extensions:
            extension.optional = True  # after cythonize, which drops it: no compiler must not stop an install

setup(ext_modules=extensions)
