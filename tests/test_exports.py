"""What `import metaq` offers: every name resolves, is listed, and is loaded only when used."""

import subprocess
import sys

import pytest

import metaq
from tests.support import environment


@pytest.mark.parametrize("name", sorted(set(metaq.__all__) - {"spark"}))
def test_every_public_name_resolves(name):
    """`metaq.NAME` works and `dir` lists it."""
    assert getattr(metaq, name) is not None
    assert name in dir(metaq)


def test_unknown_name_is_an_attribute_error():
    """As of any module."""
    with pytest.raises(AttributeError, match="nonsense"):
        metaq.nonsense  # noqa: B018


def test_import_alone_loads_nothing():
    """The broker and the command line pass through here too, and need no client."""
    program = (
        "import metaq, sys; print(*[name for name in sys.modules if name.startswith('metaq.') or name == 'asyncio'])"
    )
    command = [sys.executable, "-c", program]
    assert subprocess.run(command, capture_output=True, text=True, check=True, env=environment()).stdout.split() == []
