// What a delivery of RabbitMQ says, and the ids of business facts.

import { createHash } from "node:crypto";
import type * as amqp from "amqplib";

/** A message that no further attempt helps. */
export class Reject extends Error {}

type Texts = Record<string, string>;

/** A message as it arrived. Without an id it is malformed, and `problem` says why. */
export interface Message extends Record<"topic" | "kind" | "contentType" | "source" | "problem", string> {
  payload: Buffer;
  id: string | null;
  key: string | null;
  madeAt: string | null;
  headers: Texts;
}

type Properties = Pick<amqp.MessageProperties, "headers" | "messageId" | "contentType">;

/** The id of a business fact: the same time and parts always give the same one. */
export function derivedId(milliseconds: number, parts: string[]): string {
  const octets = Buffer.alloc(16);
  const hash = createHash("sha256");
  for (const part of parts) {
    octets.writeBigUInt64BE(BigInt(Buffer.byteLength(part)));
    hash.update(octets.subarray(0, 8)).update(part);
  }
  octets.writeUIntBE(milliseconds, 0, 6);
  hash.digest().copy(octets, 6, 0, 10);
  octets.writeUInt8((octets.readUInt8(6) & 0x0f) | 0x70, 6);
  octets.writeUInt8((octets.readUInt8(8) & 0x3f) | 0x80, 8);
  return octets.toString("hex").replace(/^(.{8})(.{4})(.{4})(.{4})/, "$1-$2-$3-$4-");
}

/** Replaces NUL, which PostgreSQL does not store in a text. */
export const clean = (text: unknown) => String(text).replaceAll("\0", "\ufffd");

/** Reads a CloudEvent from the properties of a delivery. */
export function read(topic: string, properties: Properties, payload: Buffer): Message {
  const [events, free, arrived]: [Texts, Texts, Texts] = [{}, {}, {}];
  for (const [name, value] of Object.entries(properties.headers ?? {})) {
    arrived[clean(name)] = clean(value);
    if (name.startsWith("cloudEvents_")) events[clean(name.slice(12))] = clean(value);
    else free[clean(name)] = clean(value);
  }
  const id = events["id"] ?? clean(properties.messageId ?? "");
  const isId = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i.test(id);
  const isChunk = ["chunkindex", "chunkcount", "chunkbytes", "chunkfingerprint"].some(
    (name) => name in events,
  );
  const problem = isChunk ? "a chunk of a larger message" : isId ? "" : `${id} is not a UUID`;
  if (properties.messageId !== undefined) arrived["amqp.message_id"] = clean(properties.messageId);
  return {
    topic: clean(topic),
    payload,
    id: problem ? null : id,
    kind: events["type"] ?? clean(topic),
    contentType: clean(properties.contentType ?? "application/octet-stream"),
    key: events["subject"] ?? null,
    source: events["source"] ?? "/unknown",
    madeAt: events["time"] ?? null,
    headers: problem ? arrived : free, // What is not understood distinguishes malformed deliveries.
    problem,
  };
}
