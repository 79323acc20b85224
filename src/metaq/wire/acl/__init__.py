"""The files of RocketMQ's ACL, `plain_acl.yml` and those of `conf/acl/`: text to values and back (docs/formats/acl.md)."""
