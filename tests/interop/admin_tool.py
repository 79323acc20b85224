"""RocketMQ's administration tool 4.9.8 in a process that runs command after command."""

import subprocess
from pathlib import Path

from tests.interop import maven
from tests.interop.driver import HERE, ForeignClient
from tests.support import PATIENCE

TOOLS = (f"{maven.GROUP}:rocketmq-tools:4.9.8",)


def admin_tool(folder: Path) -> ForeignClient:
    """mqadmin and java/Dashboard.java behind java/AdminTool.java, which are compiled into `folder`; its configuration and logs are there, too."""
    classpath = f"{maven.jars(*TOOLS)}/*"
    compiler = [maven.java(compiler=True), "-XDsuppressNotes", "-cp", classpath, "-d", str(folder)]
    subprocess.run(
        [*compiler, *(str(HERE / "java" / f"{name}.java") for name in ("AdminTool", "Dashboard"))],
        check=True,
        timeout=PATIENCE,
    )
    (folder / "conf").mkdir()
    (folder / "conf" / "logback_tools.xml").write_text('<configuration><root level="OFF"/></configuration>')
    command = [maven.java(), "-Xmx256m", "-XX:TieredStopAtLevel=1", f"-Duser.home={folder}"]
    command += [
        f"-Drocketmq.home.dir={folder}",
        f"-Dcom.rocketmq.remoting.client.connect.timeout={PATIENCE * 1000:.0f}",
    ]
    return ForeignClient([*command, "-cp", f"{folder}:{classpath}", "AdminTool"], folder)
