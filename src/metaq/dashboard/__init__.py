"""The dashboard: pages about a cluster of RocketMQ 4.x or MetaQ, made by a client of it.

It calls the typed functions of `metaq.admin` and nothing else, so it works on any RocketMQ 4.x. What only brokers of ours know
is None in a page's values, and shown as "this broker does not tell".

`page` says what a page is; docs/dashboard.md shows how one is added. `pages` has them, and the table of all. `application` turns
requests into pages, `rendering` values into HTML, `live` sends what has changed to open pages, `sampling` looks at the cluster for all
viewers and keeps a quarter of an hour, `security` guards every request, `server` puts it together.
"""
