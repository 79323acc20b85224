"""Accounts for tests of access control: RocketMQ's file of them, what clients of ours sign with, and the file that tools read."""

from __future__ import annotations

from collections.abc import Mapping

SECRET = "12345678-secret"
ADMIN = {"access_key": "account-admin", "secret_key": SECRET}
USER = {"access_key": "account-user", "secret_key": SECRET}
WRITER = {"access_key": "account-writer", "secret_key": SECRET}
"""Arguments of clients: of who may everything, of who may send and receive, and of who may only send."""
ACCOUNTS = f"""\
accounts:
- accessKey: account-admin
  secretKey: {SECRET}
  admin: true
- accessKey: account-user
  secretKey: {SECRET}
  defaultTopicPerm: PUB|SUB
  defaultGroupPerm: SUB
- accessKey: account-writer
  secretKey: {SECRET}
  defaultTopicPerm: PUB
"""
"""A `plain_acl.yml` with these."""


def tools_yml(account: Mapping[str, str]) -> str:
    """The text of a `tools.yml`: what one account signs with."""
    return f"accessKey: {account['access_key']}\nsecretKey: {account['secret_key']}\n"
