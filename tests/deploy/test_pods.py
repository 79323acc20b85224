"""The chart's pods as processes of this machine, with their very commands, a real ZooKeeper, and the hooks that a kubelet would run."""

from __future__ import annotations

import contextlib
import json
import os
import ssl
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

from tests.certificates import Authority
from tests.deploy.charted import GUARDED, OPEN, command_line, container, filed, merged, secrets, sets, variables
from tests.deploy.commands import loopback, ready, serving
from tests.interop.metaq1 import Zookeeper
from tests.support import PATIENCE, ROOT, environment, eventually

pytestmark = [pytest.mark.slow, pytest.mark.interop, pytest.mark.xdist_group("helm")]

HAND_OVER = ROOT / "deploy" / "container" / "hand_over.py"


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory):
    with Zookeeper(tmp_path_factory.mktemp("zookeeper")) as running:
        yield running


class Pods:
    """The pods of one release of the chart, each at a loopback address of its own."""

    def __init__(self, said, folder, running):
        self._said, self.folder, self._running = said, folder, running
        self._free = loopback()
        self.at, self.children = {}, {}
        for component in ("namesrv", "broker"):
            for one in sets(said, component):
                for number in range(one["spec"]["replicas"]):
                    self.at[f"{one['metadata']['name']}-{number}"] = next(self._free)
        self.files = secrets(folder, Authority(folder), *self.at.values())

    def told(self):
        """Host names of Kubernetes → addresses here."""
        services = {pod: "prod-metaq-namesrv" if "namesrv" in pod else "prod-metaq-broker" for pod in self.at}
        return {f"{pod}.{services[pod]}.mq.svc.cluster.local": at for pod, at in self.at.items()}

    def start(self, one, number):
        pod = f"{one['metadata']['name']}-{number}"
        scripts, data = self.folder / f"scripts-{pod}", self.folder / f"data-{pod}"
        scripts.mkdir(exist_ok=True)
        words = [filed(word, self.files) for word in command_line(one, pod, self.at[pod], scripts)]
        # Name servers come by the environment.
        addresses = ["-n", self.client(one)["NAMESRV_ADDR"]] if words[0] == "broker" else []
        self.children[pod] = self._running.enter_context(serving([*words, *addresses], self.at[pod], data, self.told()))
        return pod

    def move(self, pod):
        """A pod that is scheduled anew has another address."""
        self.at[pod] = next(self._free)

    def client(self, one):
        """The variables of the pod for `metaq` commands."""
        said = {key: filed(value, self.files) for key, value in variables(one, "x-0", "127.0.0.1").items()}
        for name, at in self.told().items():
            said["NAMESRV_ADDR"] = said["NAMESRV_ADDR"].replace(name, at)
        return {key: value for key, value in said.items() if key.startswith(("METAQ_", "NAMESRV_"))}

    def probe(self, one, pod, kind):
        """Return the status of what a kubelet asks; 0: there is no answer."""
        asked = container(one)[f"{kind}Probe"]["httpGet"]
        context = ssl._create_unverified_context() if asked["scheme"] == "HTTPS" else None  # as a kubelet does
        port = next(port["containerPort"] for port in container(one)["ports"] if port["name"] == asked["port"])
        url = f"{asked['scheme'].lower()}://{self.at[pod]}:{port}{asked['path']}"
        try:
            with urllib.request.urlopen(url, context=context, timeout=PATIENCE) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0


def metaq(variables, *arguments):
    command = [sys.executable, "-m", "metaq", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment(**variables), check=False)


@pytest.mark.parametrize("case", ["open", "guarded"])
def test_pods_choose_a_leader_and_hand_over_before_they_stop(case, zookeeper, tmp_path):
    """Probes pass; a pod that comes back with another address is the same member; the hook of a leader's pod has another one lead."""
    said = merged(
        {"failover": {"zookeeper": zookeeper.address}, "broker": {"names": [f"{case}-a"]}},
        OPEN if case == "open" else GUARDED,
    )
    with contextlib.ExitStack() as running:
        pods = Pods(said, tmp_path, running)
        (namesrv,), (broker,) = sets(said, "namesrv"), sets(said, "broker")
        for number in range(namesrv["spec"]["replicas"]):
            ready(pods.children[pods.start(namesrv, number)])
        names = [pods.start(broker, number) for number in range(broker["spec"]["replicas"])]
        for pod in names:
            for kind in ("startup", "readiness", "liveness"):
                eventually(lambda pod=pod, kind=kind: pods.probe(broker, pod, kind) == 200, what=f"{kind} of {pod}")
        assert pods.probe(namesrv, "prod-metaq-namesrv-0", "readiness") == 200
        variables = pods.client(broker)

        def group():
            """Member → what the cluster says of it, once all three are in sync."""
            done = metaq(variables, "cluster", "--json")
            found = {one["failover"]["member"]: one for one in json.loads(done.stdout or "[]") if one.get("failover")}
            return found if len(found) == 3 and all(one["failover"]["in_sync"] for one in found.values()) else None

        def leader():
            (found,) = [
                member for member, one in eventually(group, what="three in sync").items() if one["failover"]["leads"]
            ]
            return found

        first = leader()
        sent = metaq(variables, "send", "orders", "hello", "--timeout", "60")
        assert sent.returncode == 0, sent.stderr

        other = next(member for member in (1, 2, 3) if member != first)
        moved = names[other - 1]
        pods.children[moved].terminate()
        assert pods.children[moved].wait(PATIENCE) == 0
        pods.move(moved)
        assert pods.start(broker, other - 1) == moved
        eventually(
            lambda: group() and group()[other]["address"].startswith(pods.at[moved] + ":"), what="the pod that moved"
        )

        for member in (other, first):  # one that does not lead has nothing to hand over
            hook = [sys.executable, HAND_OVER, f"{case}-a", str(member), "0"]
            done = subprocess.run(
                hook, capture_output=True, text=True, env={**os.environ, **environment(**variables)}, check=False
            )
            assert done.returncode == 0
            assert ("has handed over" in done.stdout) == (member == first), done.stdout
        assert leader() != first
        read = metaq(variables, "consume", "orders", "--count", "1")
        assert "hello" in read.stdout, read.stderr
