"""Requests of clients to brokers and name servers, without sockets, event loop or clock (sans-I/O), shared by all clients.

A *call* is a frozen value: `request()` encodes the command, `outcome(answer, peer)` decodes the response, or
raises. `seconds` is its time-out.

    call = GetMaxOffset(queue)
    offset = call.outcome(exchange(call.request()), address)      # whoever may block
    offset = await core.ask(address, call)                        # the asyncio client

A *conversation* is a generator that yields calls, receives their outcomes (or errors, thrown in), and returns
its result; `driver.converse` drives it. A call for a particular peer is an `At(address, call)`.

=================  ====================================================================================================
`call`             `Call`, `At`, `asked`: the form of all this; `FAULTS`: what asking raises
`driver`           `converse`, `converse_all`: for threads that may block; `converse_async`, `ask`: for those that await
`retry`            `judge`: whether, where and when the same may be asked again; `Patience`: how long that may go on
`leaders`          `LeaderSearch`: when the name servers are asked who leads a broker that is in doubt
`routes`           `GetRoute`, `GetCluster`, `ListTopics`, `ListSystemTopics`, `DeleteTopicRoute`
`name_servers`     `NameServers`: which one is asked, the next if it fails, and why a topic has no route
`offsets`          `GetMinOffset`, `GetMaxOffset`, `GetPosition`, `SetPosition` (a group's progress in a queue)
`pulling`          `Pull`, whose outcome is a `PullResult`: status, records as they came, where to go on
`time_search`      `first_at_or_after`: the offset of the first message stored at a moment or later
`slices`           `SliceReading`: every record of [start, end) with two pulls under way, what is gone, what is not there
`lookups`          `QueryMessages`: messages by key or id
`sending`          `Send` (`Outgoing` → `Stored`), `GiveBack`: a message that failed
`tries`            `Tries`: which failures of a send count, and when the next try is made
`transactions`     `half_message`, `EndTransaction`; `check_of`: what a broker asks about a half message
`staging`          `Stage`, `SealPart`, `Decide`, `Apply`, `ListStaged`, …: staged transactions; `xa_by_hand`
`parts`            `Parts`: a transaction's messages gathered into chunks, per queue
`atomic`           `AtomicSteps`: which of these is asked of whom, and what after a lost answer; `settled`, `outcome_of`
`groups`           `SendHeartbeat`, `LeaveGroup`, `ListMembers`, `members_of`, `GetConnections`, `GetProducers`, …; `locks`
`administration`   `CreateTopic`, `DeleteTopic`, `GetTopicStats`, `GetRuntime`
`registration`     `RegisterBroker`, `UnregisterBroker`: a broker's words to a name server
`following`        `GetTable`, `FollowTables`: a slave's words to its master
`notices`          requests that a broker sends to a client on its own account
=================  ====================================================================================================
"""
