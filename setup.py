"""Builds the compiled modules where a C compiler is found; without one plain Python serves."""

import os
import sys
from pathlib import Path

from setuptools import Extension, setup

extensions = []
if os.environ.get("METAQ_BUILD_HOT", "1") != "0":
    try:
        from Cython.Build import cythonize
    except ImportError:
        pass
    else:
        hot = Extension(
            "metaq.wire._hot",
            ["src/metaq/wire/_hot.pyx"],
            depends=["src/metaq/wire/_hot_c.h", *sorted(map(str, Path("src/metaq/wire").glob("_hot_*.pxi")))],
            include_dirs=["src/metaq/wire"],
            extra_compile_args=["-O3", "-g0", "-fno-strict-aliasing"],
        )
        sweep = Extension("metaq.net._sweep", ["src/metaq/net/_sweep.pyx"], extra_compile_args=["-O3", "-g0"])
        extensions = cythonize([hot, sweep] if sys.platform == "linux" else [hot], language_level=3)  # epoll
        for extension in extensions:
            extension.optional = True  # after cythonize, which drops it: no compiler must not stop an install

setup(ext_modules=extensions)
