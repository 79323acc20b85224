"""The role of a broker in a pair, as the options say it."""

from __future__ import annotations

import importlib.util

from metaq.broker.metaq1.settings import Metaq1Settings
from metaq.errors import ConfigError
from metaq.model.failover import MEMBERS_MAX, ZOOKEEPER
from metaq.model.leadership import SLAVE
from metaq.net.address import split_address
from metaq.options import BrokerOptions


def check_role(options: BrokerOptions, metaq1: Metaq1Settings | None, *, found: bool = False) -> None:
    """Check that the broker can have its role. Raises ConfigError.

    `found`: a slave knows its master from its own past.
    """
    if metaq1 is not None and metaq1.options.slave_id is not None:
        _check_text_slave(options, metaq1)
    if options.failover != "off":
        _check_failover(options, metaq1)
        return
    if options.broker_role != SLAVE:
        if options.broker_id:  # RocketMQ's masters take 0, whatever the file says
            raise ConfigError(
                f"brokerId={options.broker_id} with brokerRole={options.broker_role}: a master has 0; set brokerRole=SLAVE for a "
                "slave, or brokerId=0 and a brokerName of its own for another master"
            )
        return
    if not options.broker_id:
        raise ConfigError(
            "brokerId=0 with brokerRole=SLAVE: give each slave of a master a number of its own, from 1 on"
        )
    if options.ha_master_address:
        split_address(options.ha_master_address)
    elif not (options.namesrv_addr or options.fetch_namesrv_addr_by_address_server or found):
        raise ConfigError(
            "brokerRole=SLAVE: set namesrvAddr, fetchNamesrvAddrByAddressServer with addressServer, or haMasterAddress, for it to find "
            "its master"
        )


def _check_failover(options: BrokerOptions, metaq1: Metaq1Settings | None) -> None:
    if options.failover != ZOOKEEPER:
        raise ConfigError(f"failover={options.failover}: it is off or {ZOOKEEPER}")
    if not options.failover_zookeeper:
        raise ConfigError(
            "failover=zookeeper: set failoverZookeeper, where the brokers of the group agree, host:port,host:port/path"
        )
    if importlib.util.find_spec("kazoo") is None:
        raise ConfigError("failover=zookeeper needs kazoo; install pymetaq[zookeeper]")
    if not 1 <= options.broker_id <= MEMBERS_MAX:
        raise ConfigError(
            f"brokerId={options.broker_id} with failover=zookeeper: give each broker of the group a number of its own, 1 to "
            f"{MEMBERS_MAX}, for ever; who leads is 0 to clients"
        )
    if metaq1 is not None and (metaq1.pair is not None or metaq1.options.slave_id is not None):
        raise ConfigError(
            "failover=zookeeper in a pair of MetaQ 1.x (--samsa, --gregor, --metaslave): a broker has its replicas in one way only; leave "
            "one of the two out"
        )


def _check_text_slave(options: BrokerOptions, metaq1: Metaq1Settings) -> None:
    slave = f"slaveId={metaq1.options.slave_id}"
    if options.broker_role == SLAVE:
        raise ConfigError(
            f"{slave} with brokerRole=SLAVE: the one copies its master's messages by the text protocol of MetaQ 1.x, the other its log by "
            "RocketMQ's; leave one of the two out"
        )
    if options.namesrv_addr or options.fetch_namesrv_addr_by_address_server:
        raise ConfigError(
            f"{slave} with name servers: a slave by the text protocol is known in ZooKeeper alone, since RocketMQ's clients would get all "
            "messages twice; leave namesrvAddr out, or use brokerRole=SLAVE"
        )
    if not (metaq1.options.zk_enable and metaq1.options.zk_connect):
        raise ConfigError(
            f"{slave} without ZooKeeper: it finds its master there; set zk.zkConnect, and zk.zkEnable=true"
        )
