"""What a delivery of RabbitMQ says, and the ids of business facts."""

import hashlib
import json
from dataclasses import dataclass, field
from uuid import UUID

from pika.spec import BasicProperties

# Each of these attributes marks a part of a message.
CHUNK = {"chunkindex", "chunkcount", "chunkbytes", "chunkfingerprint"}


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
        return int(order["order"]), str(order["customer"]), int(order["cents"])
    except (ValueError, KeyError, TypeError) as error:
        raise Reject(f"the payload is no order: {error!r}") from error


def read(topic: str, properties: BasicProperties, payload: bytes) -> Message:
    """Reads a CloudEvent from the properties of a delivery."""
    topic = clean(topic)
    arrived = {clean(name): clean(value) for name, value in (properties.headers or {}).items()}
    events = {name[12:]: value for name, value in arrived.items() if name.startswith("cloudEvents_")}
    free = {name: value for name, value in arrived.items() if not name.startswith("cloudEvents_")}
    try:
        if CHUNK & events.keys():
            raise ValueError("a chunk of a larger message")
        message_id = UUID(events.get("id") or clean(properties.message_id or ""))
        content_type = clean(properties.content_type or "application/octet-stream")
        origin = (events.get("subject"), events.get("source", "/unknown"), events.get("time"))
        return Message(topic, payload, message_id, events.get("type") or topic, content_type, *origin, free)
    except ValueError as error:
        if properties.message_id is not None:
            arrived["amqp.message_id"] = clean(properties.message_id)
        return Message(topic, payload, headers=arrived, problem=clean(error))
