"""The JSON bodies of the remoting protocol: values in, bytes out, and back (reference: RocketMQ 4.9, section 2.8).

For a body X, `x(...)` encodes and `x_of(body)` decodes. Encoders write compact standard JSON unless Java's readers need
one of fastjson's odd forms. Decoders take all that fastjson takes, by its rules for types (`metaq.wire.beans`), and raise
BadRequest for a wrong part; it names body and field. `x_tree` gives the parsed form and `x_of_tree` takes it, as a
`beans.Value`; the configuration files share them.

Each name has its home in the module of its subject; protocol code writes `bodies.X`, whichever that is.
"""

from metaq.wire.bodies.clients import *  # noqa: F403
from metaq.wire.bodies.groups import *  # noqa: F403
from metaq.wire.bodies.locks import *  # noqa: F403
from metaq.wire.bodies.offsets import *  # noqa: F403
from metaq.wire.bodies.parts import *  # noqa: F403
from metaq.wire.bodies.register import *  # noqa: F403
from metaq.wire.bodies.routes import *  # noqa: F403
from metaq.wire.bodies.stats import *  # noqa: F403
from metaq.wire.bodies.topics import *  # noqa: F403
