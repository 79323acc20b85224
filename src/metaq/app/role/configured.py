"""The role of a broker in a pair, as the options say it."""

from __future__ import annotations

from metaq.broker.metaq1.settings import Metaq1Settings
from metaq.errors import ConfigError
from metaq.model.leadership import SLAVE
from metaq.net.address import split_address
from metaq.options import BrokerOptions


def check_role(options: BrokerOptions, metaq1: Metaq1Settings | None, *, found: bool = False) -> None:
    """Check that the broker can have its role. Raises ConfigError.

    `found`: a slave knows its master from its own past.
    """
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
    elif not (options.namesrv_addr or found):
        raise ConfigError("brokerRole=SLAVE: set namesrvAddr, or haMasterAddress, for it to find its master")
