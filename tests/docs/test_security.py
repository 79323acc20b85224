"""The program of docs/security.md sends by TLS."""

from __future__ import annotations

import subprocess
import sys

import metaq
from metaq.testing import EmbeddedBroker
from metaq.tls_options import TlsOptions
from tests.certificates import Authority
from tests.docs.pages import blocks, replaced
from tests.support import PATIENCE, ROOT, environment

PAGE = (ROOT / "docs" / "security.md").read_text()


def test_the_program_sends_to_a_broker_that_takes_nothing_else(tmp_path):
    """With a certificate of an authority that only the file of the program names."""
    authority = Authority(tmp_path)
    issued = authority.issue("server")
    options = TlsOptions(
        tls_server_mode="enforcing", tls_server_cert_path=str(issued.cert), tls_server_key_path=str(issued.key),
        tls_client_trust_cert_path=str(authority.cert),
    )  # fmt: skip
    [program] = blocks(PAGE, "python")
    path = tmp_path / "program.py"
    pairs = {name: value for name, value in options.properties().items() if value}
    with EmbeddedBroker(options=pairs) as broker:
        words = {"broker.example.com:9876": broker.namesrv, "/etc/metaq/ca.pem": str(authority.cert)}
        path.write_text(replaced(program, words))
        done = subprocess.run(
            [sys.executable, str(path)],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
            env=environment(),
        )
        assert (done.returncode, done.stderr) == (0, "")
        with metaq.Reader(broker.namesrv, "orders", stop_at_end=True, tls=True, ca=authority.cert) as reader:
            assert [message.body for message in reader] == [b"paid"]
