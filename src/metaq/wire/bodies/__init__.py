"""JSON bodies of the remoting protocol (RocketMQ 4.9): values to bytes and back.

For a body X, `x(...)` encodes and `x_of(body)` decodes. Encoders write compact standard JSON unless Java's readers need
one of fastjson's odd forms (`metaq.wire.fastjson`). Decoders take all that fastjson takes, by its rules for types
(`metaq.wire.beans`), and raise BadRequest for a wrong part, which names body and field. `x_tree` gives the parsed form
and `x_of_tree` takes it, as a `beans.Value`; the configuration files share them.

Protocol code writes `bodies.X`, whichever module X is in.
"""

from metaq.wire.bodies.accounts import *  # noqa: F403
from metaq.wire.bodies.clients import *  # noqa: F403
from metaq.wire.bodies.inspection import *  # noqa: F403
from metaq.wire.bodies.name_servers import *  # noqa: F403
from metaq.wire.bodies.parts import *  # noqa: F403
from metaq.wire.bodies.queues import *  # noqa: F403
from metaq.wire.bodies.running import *  # noqa: F403
from metaq.wire.bodies.statistics import *  # noqa: F403
from metaq.wire.bodies.tables import *  # noqa: F403
