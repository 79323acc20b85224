"""Rows of access control: signed requests beside unsigned ones of a broker without it, from the same generator.

The generator repeats the same requests (`fixed=1`), so that it signs a send once: a broker has to verify it each time. Each run
also has unsigned requests from an address in the white list of a broker with access control: `white`.
"""

import secrets
import tempfile
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import costs
import processes
from row import Bench, Measured, Row

ACCOUNT = "bench-account"


def _load(bench: Bench, mode: str, options: Sequence[str], awake: bool, **load: object) -> Measured:
    """One run of the generator on a broker with these options."""
    with (
        processes.cores_awake() if awake else nullcontext(),
        processes.metaq_up(bench.disk, options=options) as server,
    ):
        if mode == "pull":  # what there is to pull
            processes.load(bench.cache, "send", server.address, **{**load, "conns": 4, "outstanding": 64})
        with costs.spent(server) as spent:
            result = processes.load(bench.cache, mode, server.address, **load)
    return {**result, **spent.each(max(1, result["requests"]))}


def signed_beside_unsigned(
    bench: Bench, mode: str, full: int, conns: int, outstanding: int, *, awake: bool = False
) -> Measured:
    """Signed, unsigned and white-listed requests in turn; who goes first alternates."""
    load = {
        "count": bench.count(full),
        "conns": conns,
        "outstanding": outstanding,
        "body": 100,
        "seconds": 60,
        "fixed": 1,
    }
    with tempfile.TemporaryDirectory(prefix="metaq-acl-", dir=bench.disk) as folder:
        secret = secrets.token_hex(16)

        def guarded(name: str, white: str) -> tuple[str, ...]:
            file = Path(folder, name)
            account = f"- accessKey: {ACCOUNT}\n  secretKey: '{secret}'\n  admin: true\n  topicPerms: [other=DENY]\n"
            account += "  defaultTopicPerm: PUB|SUB\n  defaultGroupPerm: SUB\n"
            file.write_text(f"globalWhiteRemoteAddresses: [{white}]\naccounts:\n{account}")
            return "-o", "aclEnable=true", "-o", f"aclPath={file}"

        runs: list[tuple[str, Callable[[], Measured]]] = [
            ("plain", partial(_load, bench, mode, (), awake, **load)),
            ("white", partial(_load, bench, mode, guarded("white.yml", "127.0.0.1"), awake, **load)),
            (
                "signed",
                partial(
                    _load, bench, mode, guarded("signed.yml", ""), awake, **load, access_key=ACCOUNT, secret=secret
                ),
            ),
        ]
        if bench.run % 2:
            runs.reverse()
        found = {name: run() for name, run in runs}
    return {
        **found["signed"],
        "value": found["signed"]["requests_per_s"] / 1000,
        "beside": found["plain"]["requests_per_s"] / 1000,
        "beside_cpu_us": found["plain"]["cpu_us"],
        "white": found["white"]["requests_per_s"] / 1000,
        "white_cpu_us": found["white"]["cpu_us"],
    }


def _row(key: str, work: str, mode: str, full: int, conns: int, outstanding: int, *, awake: bool = False) -> Row:
    measure = partial(signed_beside_unsigned, mode=mode, full=full, conns=conns, outstanding=outstanding, awake=awake)
    return Row(key, work, "k/s", 0.6, 0.8, measure, beside="unsigned ones", times_peer=True)


ACL_ROWS = (
    _row("acl-signed-send", "signed sends 4 × 64, 100 B", "send", 400_000, 4, 64),
    _row("acl-signed-64x1", "signed sends 64 × 1, 100 B", "send", 200_000, 64, 1),
    _row("acl-signed-pull", "signed pulls 4 × 64 of 32 × 100 B", "pull", 60_000, 4, 64),
)
