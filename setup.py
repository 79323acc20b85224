"""Builds the hot module where a C compiler is found; without one the plain Python twin serves."""

import os
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
        extensions = cythonize([hot], language_level=3)
        for extension in extensions:
            extension.optional = True  # after cythonize, which drops it: no compiler must not stop an install

setup(ext_modules=extensions)
