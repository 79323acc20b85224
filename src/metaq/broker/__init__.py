"""What the broker decides: topics, groups, offsets, sends, pulls, retries and delays, without sockets or files.

`broker.Broker` puts the services together; a server (`metaq.servers`) turns its protocol into their calls.
"""
