"""Which files a file needs, by its imports."""

from __future__ import annotations

import textwrap

import pytest

from checks.graph import ImportGraph, module_of, read


@pytest.fixture
def tree(tmp_path):
    """Writes files, and returns the graph of them."""

    def write(texts):
        for name, text in texts.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(textwrap.dedent(text))
        return ImportGraph(tmp_path, texts)

    return write


@pytest.mark.parametrize(
    ("path", "module"),
    [
        ("src/metaq/store/log/__init__.py", "metaq.store.log"),
        ("src/metaq/clock.py", "metaq.clock"),
        ("tests/spark/running.py", "tests.spark.running"),
        ("bench/row.py", "row"),
        ("docs/page.md", None),
        ("setup.py", None),
    ],
)
def test_a_file_is_a_module_by_its_place(path, module):
    """Scripts of bench/ and examples/ import each other by their bare names."""
    assert module_of(path) == module


def test_imports_are_read_wherever_they_stand():
    """At once, in functions, relative ones, programs that are named; those for types alone are no imports."""
    found = read(
        textwrap.dedent(
            """
            import a.b
            from . import c
            from typing import TYPE_CHECKING
            if TYPE_CHECKING:
                from d.e import F as G
            def f():
                from ..h import i
                run("-m", "j.k")
            """
        ),
        "x.y.z",
        package=False,
    )
    assert found.eager == ("a.b", "x.y:c", "typing:TYPE_CHECKING")
    assert set(found.late) >= {"x.h:i", "'j.k"}
    assert found.homes == {"G": "d.e:F"}


FACADE = """
    from typing import TYPE_CHECKING
    if TYPE_CHECKING:
        from metaq.client import Producer
        from metaq.model import Message
    HOMES = {"Producer": "metaq.client", "Message": "metaq.model"}
    def __getattr__(name):
        import metaq.everything
"""
TREE = {
    "src/metaq/__init__.py": FACADE,
    "src/metaq/client.py": "import metaq.model",
    "src/metaq/model.py": "",
    "src/metaq/everything.py": "",
    "src/metaq/cli/__init__.py": "",
    "src/metaq/cli/main.py": "import metaq.model\ndef run():\n    import metaq.everything",
    "tests/__init__.py": "",
    "tests/conftest.py": "",
    "tests/a/conftest.py": "import metaq.client",
    "tests/a/test_a.py": "",
    "tests/b/test_b.py": "import metaq\ndef test_x():\n    metaq.Message()",
    "tests/b/test_c.py": "from metaq import Producer",
    "tests/b/test_d.py": "def test_x():\n    run('-m', 'metaq.everything')",
    "bench/row.py": "",
    "bench/run.py": "import row",
}  # fmt: skip


def test_a_closure_follows_imports_to_the_end(tree):
    """With the packages around each module, and the conftest.py on the way to a test."""
    graph = tree(TREE)
    assert graph.closure(["tests/a/test_a.py"]) == {
        "tests/a/test_a.py", "tests/a/conftest.py", "tests/conftest.py", "tests/__init__.py", "src/metaq/__init__.py",
        "src/metaq/client.py", "src/metaq/model.py",
    }  # fmt: skip
    assert graph.closure(["bench/run.py"]) == {"bench/run.py", "bench/row.py"}
    assert graph.closure(["docs/none.md"]) == set()


def test_who_takes_a_name_from_a_facade_needs_its_home_alone(tree):
    """By import or by attribute; what the facade could load besides is nobody's input."""
    graph = tree(TREE)
    assert graph.closure(["tests/b/test_b.py"]) & {"src/metaq/client.py", "src/metaq/model.py"} == {
        "src/metaq/model.py"
    }
    assert graph.closure(["tests/b/test_c.py"]) >= {"src/metaq/client.py", "src/metaq/model.py"}
    assert "src/metaq/everything.py" not in graph.closure(["tests/b/test_b.py", "tests/b/test_c.py"])


def test_a_program_that_is_named_counts(tree):
    """`python -m` of one of ours is an import of another process."""
    assert "src/metaq/everything.py" in tree(TREE).closure(["tests/b/test_d.py"])


def test_a_dispatcher_needs_what_it_loads_at_once(tree):
    """What a command loads when it runs is an input of who runs it, and he says so."""
    found = tree(TREE).closure(["src/metaq/cli/main.py"])
    assert "src/metaq/model.py" in found
    assert "src/metaq/everything.py" not in found


def test_a_package_is_all_its_modules(tree):
    """A name that is none is an error: a step that names it would depend on nothing."""
    graph = tree(TREE)
    assert graph.modules_of("metaq.cli") == {"src/metaq/cli/__init__.py", "src/metaq/cli/main.py"}
    assert graph.modules_of("metaq.model") == {"src/metaq/model.py"}
    with pytest.raises(KeyError):
        graph.modules_of("metaq.cl")
