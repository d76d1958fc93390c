"""What a delivery of RabbitMQ says, and the ids of business facts."""

import base64
import hashlib
import json
import re
from dataclasses import dataclass, field
from uuid import UUID

from pika.spec import BasicProperties

# Each of these attributes marks a part of a message.
CHUNK = {"chunkindex", "chunkcount", "chunkbytes", "chunkfingerprint"}
# Every other attribute is a header.
ATTRIBUTES = CHUNK | {"specversion", "id", "source", "type", "time", "subject", "datacontenttype"}
HYPHENATED = "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
# The spellings of an id.
ID = re.compile(rf"(urn:uuid:)?{HYPHENATED}|\{{{HYPHENATED}\}}|[0-9a-f]{{32}}", re.ASCII | re.IGNORECASE)
# What divides a text in JSON: whole strings, and the characters between them.
MARK = re.compile(r'"(?:[^"\\]++|\\.)*+"|[\[\]{},:]')


class Reject(Exception):
    """A message that no further attempt helps."""


@dataclass(frozen=True)
class Message:
    """A message as it arrived. Without an id it is malformed, and `problem` says why."""

    topic: str
    payload: bytes
    id: UUID | None = None
    kind: str | None = None
    content_type: str = "application/octet-stream"
    key: str | None = None
    source: str = "/unknown"
    made_at: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    problem: str = ""


def derived_id(milliseconds: int, *parts: str) -> UUID:
    """The id of a business fact: the same time and parts always give the same one."""
    hashed = hashlib.sha256(b"".join(len(p.encode()).to_bytes(8, "big") + p.encode() for p in parts))
    octets = bytearray(milliseconds.to_bytes(6, "big") + hashed.digest()[:10])
    octets[6] = octets[6] & 0x0F | 0x70
    octets[8] = octets[8] & 0x3F | 0x80
    return UUID(bytes=bytes(octets))


def clean(text: object) -> str:
    """Replaces what PostgreSQL does not store in a text: NUL, and half a surrogate pair."""
    return str(text).replace("\0", "\ufffd").encode(errors="replace").decode()


def order_of(message: Message) -> tuple[int, str, int]:
    """The order in a payload: its number, customer and cents."""
    try:
        order = json.loads(message.payload)
        number, customer, cents = order["order"], order["customer"], order["cents"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Reject(f"the payload is no order: {error!r}") from error
    # `True` is an integer for `isinstance`, and the columns have 64 bits.
    for value in number, cents:
        if type(value) is not int or not -(2**63) <= value < 2**63:
            raise Reject(f"the payload is no order: {str(value)[:64]} is no number of 64 bits")
    if not isinstance(customer, str):
        raise Reject("the payload is no order: its customer is no text")
    return number, customer, cents


def read_id(text: str) -> UUID:
    """Reads an id in every spelling that the library reads, and in no other. `UUID` alone reads more."""
    if not ID.fullmatch(text):
        raise ValueError(f"{text[:64]!r} is not a UUID")
    return UUID(text.lower())


def is_event(content_type: str) -> bool:
    """Whether a body is a whole CloudEvent in JSON."""
    return content_type.split(";")[0].strip().lower() == "application/cloudevents+json"


def members(text: str) -> dict[str, str]:
    """The members of a JSON object as they are written: an inbox compares payloads by their bytes."""
    if not isinstance(json.loads(text, parse_constant=int), dict):  # `int` refuses NaN, which is no JSON.
        raise ValueError("the body is no JSON object")
    found: dict[str, str] = {}
    name: str | None = None
    depth = begin = 0
    for match in MARK.finditer(text):
        mark = match.group()
        depth += (mark in "{[") - (mark in "}]")
        if depth == 1 and name is None and mark[0] == '"':
            name = str(json.loads(mark))
        elif depth == 1 and mark == ":":
            begin = match.end()
        elif name is not None and (depth == 0 or (depth == 1 and mark == ",")):
            if name in found:
                raise ValueError(f"the member {name[:64]!r} occurs twice")
            found[name] = text[begin : match.start()].strip()
            name = None
    return found


def free_headers(text: str) -> dict[str, str]:
    """The headers in the attribute `headers` of the relay. That of another producer is a header."""
    try:
        found = {clean(name): json.loads(value) for name, value in members(text).items()}
    except ValueError:
        return {"headers": text}
    is_of_relay = all(isinstance(value, str) for value in found.values())
    return {name: clean(value) for name, value in found.items()} if is_of_relay else {"headers": text}


def open_event(body: bytes) -> tuple[dict[str, str], dict[str, str], bytes]:
    """Attributes, free headers and payload of a CloudEvent that is the whole body."""
    written = members(body.decode())
    data, encoded = written.pop("data", None), written.pop("data_base64", None)
    # Null, objects and arrays are no attributes.
    given = {clean(name): value for name, value in written.items() if value[0] not in "n{["}
    events = {name: clean(json.loads(value) if value[0] == '"' else value) for name, value in given.items()}
    if not events.get("specversion", "").startswith("1."):
        raise ValueError("the body is no CloudEvent 1.0")
    if data is not None and encoded is not None:
        raise ValueError("the event has both data and data_base64")
    headers = free_headers(events.pop("headers", "{}"))
    if encoded is not None:
        return events, headers, base64.b64decode(json.loads(encoded), validate=True)
    if data is None:
        return events, headers, b""
    content_type = events.setdefault("datacontenttype", "application/json").split(";")[0].rstrip()
    # With another type than JSON, a string stands for its text.
    is_text = data[0] == '"' and not content_type.endswith(("/json", "+json"))
    return events, headers, (str(json.loads(data)) if is_text else data).encode()


def read(topic: str, properties: BasicProperties, body: bytes) -> Message:
    """Reads a CloudEvent from the properties of a delivery, or from a body that is the whole event."""
    topic, payload = clean(topic), body
    arrived_as = content_type = clean(properties.content_type or "application/octet-stream")
    arrived = {clean(name): clean(value) for name, value in (properties.headers or {}).items()}
    events = {name[12:]: value for name, value in arrived.items() if name.startswith("cloudEvents_")}
    free = {name: value for name, value in arrived.items() if not name.startswith("cloudEvents_")}
    try:
        if is_event(content_type) and "id" not in events:
            event, headers, payload = open_event(body)
            events, free, content_type = events | event, headers | free, "application/octet-stream"
        if CHUNK & events.keys():
            raise ValueError("a chunk of a larger message")
        if "" in (events.get("type"), events.get("source")):
            raise ValueError("its type or its source is empty")
        # An attribute that is there counts, although it is empty.
        message_id = read_id(events.get("id", clean(properties.message_id or "")))
        kind = events.get("type", clean(properties.type or topic))
        content_type = events.get("datacontenttype", content_type)
        origin = (events.get("subject") or None, events.get("source", "/unknown"), events.get("time"))
        free = {name: value for name, value in events.items() if name not in ATTRIBUTES} | free
        return Message(topic, payload, message_id, kind, content_type, *origin, free)
    except (ValueError, TypeError, RecursionError) as error:
        if properties.message_id is not None:
            arrived["amqp.message_id"] = clean(properties.message_id)
        return Message(topic, body, content_type=arrived_as, headers=arrived, problem=clean(error))
