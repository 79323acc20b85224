"""Serializers: what makes bodies of values, and values of bodies.

    producer = Producer(..., serialize=Json(Order))        # producer.send("orders", Order(id=42))
    consumer = Consumer(..., deserialize=Json(Order))      # message.value is an Order

Ready ones are `Json` and `Text`. Any other object with `encode` and `decode` will do, and so does a function. Pickle is
refused by name: whoever can send a message could run code in every consumer.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeAlias, cast, is_typeddict, overload, runtime_checkable

import msgspec
import msgspec.inspect

from metaq.client.shared.values import Value
from metaq.errors import ConfigError, InvalidMessage
from metaq.model.message import as_body


@runtime_checkable
class Serializer(Protocol[Value]):
    """Both directions. `decode` raises what it likes for a body that it cannot read; `Reject` makes a dead letter of it."""

    def encode(self, value: Value, /) -> bytes:
        """Return the body of a message with this value."""
        ...

    def decode(self, body: bytes, /) -> Value:
        """Return the value of a message with this body."""
        ...


Encode: TypeAlias = Callable[[Any], bytes]
Decode: TypeAlias = Callable[[bytes], Any]
Serialize: TypeAlias = Serializer[Value] | Callable[[Value], bytes] | str
"""What `serialize=` takes: a serializer, a function of the value, or the name of a ready one."""
Deserialize: TypeAlias = Serializer[Value] | Callable[[bytes], Value] | str
"""What `deserialize=` takes: a serializer, a function of the body, or the name of a ready one."""

_REFUSED = frozenset({"pickle", "_pickle", "cpickle", "cloudpickle", "dill", "marshal", "shelve", "joblib"})


_CLASS = type


class Json(Generic[Value]):
    """JSON, of `type`: a msgspec Struct, dataclass, TypedDict or annotation such as `list[int]`, or a pydantic model.

    Without a type, dicts, lists, texts, numbers, True, False and None. What is decoded is validated against the type;
    fields that the type does not have are passed over, unless the type forbids them. Bodies are UTF-8.
    """

    @overload
    def __init__(self, type: type[Value]) -> None: ...

    @overload
    def __init__(self: Json[Any], type: Any = Any) -> None: ...

    def __init__(self, type: Any = Any) -> None:  # noqa: A002
        """Raises ConfigError: no JSON can be of that type."""
        self.type = type
        plain = isinstance(type, _CLASS) and type is not Any and not is_typeddict(type)
        self._checked = cast("tuple[Any, ...]", (type,) if plain else ())
        self._model = type if hasattr(type, "model_validate_json") else None
        self._decoder: msgspec.json.Decoder[Any] | None = None
        if self._model is None:
            try:
                self._decoder = msgspec.json.Decoder(type, dec_hook=_of_model)
                known = not isinstance(msgspec.inspect.type_info(type), msgspec.inspect.CustomType)
            except TypeError as error:
                raise ConfigError(f"Json({type!r}): {error}") from None
            if not known:
                raise ConfigError(
                    f"Json({type!r}): nothing says how one is made of JSON: use a msgspec Struct, a dataclass, a TypedDict, a "
                    "pydantic model, or a serializer of your own with encode and decode"
                )

    def encode(self, value: Value) -> bytes:
        """Raises TypeError: of another type than the serializer's, or of one that JSON has not."""
        if self._checked and not isinstance(value, self._checked):
            raise TypeError(f"{self!r} got {_type(value)}")
        # By its method, not its class: pydantic need not be installed.
        if hasattr(value, "model_dump_json"):  # pydantic's
            return cast("str", value.model_dump_json()).encode()
        return msgspec.json.encode(value, enc_hook=_as_model)

    def decode(self, body: bytes) -> Value:
        """Raises ValueError (of msgspec or pydantic): no JSON, or none of the type. RecursionError: nested too deeply."""
        if self._decoder is not None:
            return cast("Value", self._decoder.decode(body))
        return cast("Value", cast("Any", self._model).model_validate_json(body))

    def __repr__(self) -> str:
        return f"Json({'' if self.type is Any else getattr(self.type, '__name__', self.type)})"


def _as_model(value: Any) -> Any:
    """For what msgspec does not know: a pydantic model within something else. Raises NotImplementedError: it is none."""
    if not hasattr(value, "model_dump_json"):
        raise NotImplementedError(f"JSON has no {_type(value)}")
    return msgspec.Raw(cast("str", value.model_dump_json()).encode())


def _of_model(wanted: Any, found: Any) -> Any:
    """The same the other way round. Raises what the model raises, which msgspec makes a ValidationError of."""
    if not hasattr(wanted, "model_validate_json"):
        raise NotImplementedError(f"JSON cannot be made a {wanted!r}")
    return wanted.model_validate_json(msgspec.json.encode(found))


class Text:
    """Text in an encoding."""

    def __init__(self, encoding: str = "utf-8") -> None:
        """Raises ConfigError: there is no such encoding."""
        try:
            self.encoding = codecs.lookup(encoding).name
        except LookupError:
            raise ConfigError(f"Text({encoding!r}): Python knows no such encoding") from None

    def encode(self, value: str) -> bytes:
        """Raises TypeError: no text; UnicodeEncodeError: the encoding has not all of its characters."""
        if not isinstance(value, str):
            raise TypeError(f"{self!r} got {_type(value)}")
        return value.encode(self.encoding)

    def decode(self, body: bytes) -> str:
        """Return the text of a body. Raises UnicodeDecodeError (a ValueError): the body is not of the encoding."""
        return body.decode(self.encoding)

    def __repr__(self) -> str:
        return f"Text({self.encoding!r})"


_NAMED: dict[str, Callable[[], Serializer]] = {"json": Json, "text": Text}


def encoder_of(serialize: Serialize | None) -> Encode | None:
    """The function that makes a body of a value. Raises ConfigError, TypeError: it is none."""
    if serialize is None:
        return None
    _refuse_pickle("serialize", serialize)
    if isinstance(serialize, str):
        return _named("serialize", serialize).encode
    encode = serialize.encode if isinstance(serialize, Serializer) else serialize
    if not callable(encode) or isinstance(serialize, type):
        raise TypeError(f"serialize is {serialize!r}: pass a serializer such as metaq.Json(), or a function")

    def encoded(value: Any) -> bytes:
        try:
            return as_body(encode(value))
        except Exception as error:
            raise InvalidMessage(f"no body can be made of {_type(value)} by {serialize!r}: {error}") from error

    return encoded


def decoder_of(deserialize: Deserialize | None) -> Decode | None:
    """The function that makes a value of a body. Raises ConfigError, TypeError: it is none."""
    if deserialize is None:
        return None
    _refuse_pickle("deserialize", deserialize)
    if isinstance(deserialize, str):
        return _named("deserialize", deserialize).decode
    # A class has the methods, too, but is no serializer before it is called.
    if isinstance(deserialize, Serializer) and not isinstance(deserialize, type):
        return deserialize.decode
    if not callable(deserialize) or isinstance(deserialize, type):
        raise TypeError(f"deserialize is {deserialize!r}: pass a serializer such as metaq.Json(Order), or a function")
    return deserialize


def _named(argument: str, name: str) -> Serializer:
    if name not in _NAMED:
        raise ConfigError(
            f"{argument}={name!r}: need one of {', '.join(map(repr, _NAMED))}, a serializer or a function"
        )
    return _NAMED[name]()


def _refuse_pickle(argument: str, given: object) -> None:
    """Raises ConfigError."""
    if isinstance(given, str):
        home = given
    else:  # a function, a module, or an object of a class
        home = getattr(given, "__module__", None) or getattr(given, "__name__", None) or type(given).__module__
    if str(home).partition(".")[0].lower() in _REFUSED:
        raise ConfigError(
            f"{argument}={given!r} is refused: unpickling runs code that is in the message, so whoever can send to the topic "
            "could run anything in its consumers. Use metaq.Json or a format of your own"
        )


def _type(value: object) -> str:
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"
