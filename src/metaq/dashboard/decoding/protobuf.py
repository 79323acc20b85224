"""Protobuf bodies, by descriptors that protoc has written."""

from __future__ import annotations

from collections.abc import Callable

from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from google.protobuf.message import DecodeError

from metaq.errors import ConfigError


def protobuf_decoder(descriptors: bytes, message: str, where: str) -> Callable[[bytes], str]:
    """Return a function that decodes one body. `where`: for errors. Raises ConfigError: no descriptors, or they have no such type."""
    # A pool of its own: the process's default pool refuses a second version of a file.
    pool = descriptor_pool.DescriptorPool()
    try:
        for file in descriptor_pb2.FileDescriptorSet.FromString(descriptors).file:
            pool.Add(file)
    except (DecodeError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{where}: these are no whole protobuf descriptors: make them with protoc --include_imports --descriptor_set_out=FILE ({error})"
        ) from None
    try:
        make = message_factory.GetMessageClass(pool.FindMessageTypeByName(message))
    except KeyError:
        raise ConfigError(f"{where}: the descriptors have no message type {message}") from None

    def decode(body: bytes) -> str:
        found = make()
        try:
            found.MergeFromString(body)
            if not found.IsInitialized():
                raise ValueError("a required field is missing")
            text: str = json_format.MessageToJson(found, preserving_proto_field_name=True, descriptor_pool=pool)
        except (DecodeError, json_format.Error, TypeError, RecursionError, KeyError) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from None
        return text

    return decode
