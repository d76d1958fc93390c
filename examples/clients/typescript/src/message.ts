// What a delivery of RabbitMQ says, and the ids of business facts.

import { isUtf8 } from "node:buffer";
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

type Properties = Pick<amqp.MessageProperties, "headers" | "messageId" | "contentType" | "type">;

/** What a CloudEvent says. */
interface CloudEvent {
  attributes: Texts;
  headers: Texts;
  payload: Buffer;
}

/** Each of these attributes marks a part of a message. */
const CHUNK = ["chunkindex", "chunkcount", "chunkbytes", "chunkfingerprint"];
/** Every other attribute is a header. */
const ATTRIBUTES = [...CHUNK, "specversion", "id", "source", "type", "time", "subject", "datacontenttype"];
const HYPHENATED = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}";
/** The spellings of an id. */
const ID = new RegExp(`^(?:(?:urn:uuid:)?${HYPHENATED}|\\{${HYPHENATED}\\}|[0-9a-f]{32})$`, "i");

const hyphenated = (digits: string) => digits.replace(/^(.{8})(.{4})(.{4})(.{4})/, "$1-$2-$3-$4-");

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
  return hyphenated(octets.toString("hex"));
}

/** Replaces what PostgreSQL does not store in a text: NUL, and half a surrogate pair. */
export const clean = (text: unknown) => Buffer.from(String(text).replaceAll("\0", "\ufffd")).toString();

/** Reads an id in every spelling that the library reads, and in no other. */
function readId(text: string): string {
  if (!ID.test(text)) throw new Error(`"${text.slice(0, 64)}" is not a UUID`);
  return hyphenated(text.toLowerCase().replace(/^urn:uuid:|[{}-]/g, ""));
}

/** The members of a JSON object as they are written: an inbox compares payloads by their bytes. */
function members(text: string): Map<string, string> {
  const object: unknown = JSON.parse(text);
  if (!(object instanceof Object) || Array.isArray(object)) throw new Error("the body is no JSON object");
  const found = new Map<string, string>();
  let name: string | undefined;
  let [depth, begin] = [0, 0];
  for (let at = 0; at < text.length; at++) {
    const mark = text.charAt(at);
    if (mark === '"') {
      const start = at;
      for (at++; text.charAt(at) !== '"'; at++) {
        if (text.charAt(at) === "\\") at++;
      }
      if (depth === 1) name ??= String(JSON.parse(text.slice(start, at + 1)));
    } else if (mark === ":" && depth === 1) {
      begin = at + 1;
    } else {
      if (mark === "{" || mark === "[") depth++;
      if (mark === "}" || mark === "]") depth--;
      if (name !== undefined && (depth === 0 || (depth === 1 && mark === ","))) {
        if (found.has(name)) throw new Error(`the member "${name.slice(0, 64)}" occurs twice`);
        found.set(name, text.slice(begin, at).trim());
        name = undefined;
      }
    }
  }
  return found;
}

const isText = (written: string) => written.startsWith('"');

/** The headers in the attribute `headers` of the relay. That of another producer is a header. */
function freeHeaders(text: string): Texts {
  try {
    const found = [...members(text)];
    if (found.every(([, value]) => isText(value)))
      return Object.fromEntries(found.map(([name, value]) => [clean(name), clean(JSON.parse(value))]));
  } catch {
    // It is no JSON.
  }
  return { headers: text };
}

/** Opens a CloudEvent that is the whole body. */
function openEvent(body: Buffer): CloudEvent {
  if (!isUtf8(body)) throw new Error("the body is not UTF-8");
  const written = members(body.toString());
  const [data, encoded] = [written.get("data"), written.get("data_base64")];
  const attributes: Texts = {};
  for (const [name, value] of written) {
    // Null, objects and arrays are no attributes.
    if (name === "data" || name === "data_base64" || /^[n{[]/.test(value)) continue;
    attributes[clean(name)] = clean(isText(value) ? JSON.parse(value) : value);
  }
  if (!attributes["specversion"]?.startsWith("1.")) throw new Error("the body is no CloudEvent 1.0");
  if (data !== undefined && encoded !== undefined) throw new Error("the event has data of both kinds");
  const headers = freeHeaders(attributes["headers"] ?? "{}");
  delete attributes["headers"];
  let payload: Buffer = Buffer.alloc(0);
  if (encoded !== undefined) {
    const text: unknown = JSON.parse(encoded);
    payload = Buffer.from(String(text), "base64");
    if (payload.toString("base64") !== text) throw new Error("data_base64 is no Base64");
  } else if (data !== undefined) {
    const contentType = (attributes["datacontenttype"] ??= "application/json");
    const isJson = /^[^;]*[/+]json\s*(;|$)/.test(contentType);
    // With another type than JSON, a string stands for its text.
    payload = Buffer.from(isText(data) && !isJson ? String(JSON.parse(data)) : data);
  }
  return { attributes, headers, payload };
}

/** Reads a CloudEvent from the properties of a delivery, or from a body that is the whole event. */
export function read(routingKey: string, properties: Properties, body: Buffer): Message {
  const [events, free, arrived]: [Texts, Texts, Texts] = [{}, {}, {}];
  for (const [name, value] of Object.entries(properties.headers ?? {})) {
    arrived[clean(name)] = clean(value);
    if (name.startsWith("cloudEvents_")) events[clean(name.slice(12))] = clean(value);
    else free[clean(name)] = clean(value);
  }
  const topic = clean(routingKey);
  const contentType = clean(properties.contentType || "application/octet-stream");
  try {
    const isEvent = /^\s*application\/cloudevents\+json\s*(;|$)/i.test(contentType) && !("id" in events);
    const event: CloudEvent = isEvent ? openEvent(body) : { attributes: {}, headers: {}, payload: body };
    const found: Texts = { ...events, ...event.attributes };
    if (CHUNK.some((name) => name in found)) throw new Error("a chunk of a larger message");
    if (found["type"] === "" || found["source"] === "") throw new Error("its type or its source is empty");
    const further = Object.entries(found).filter(([name]) => !ATTRIBUTES.includes(name));
    return {
      topic,
      payload: event.payload,
      // An attribute that is there counts, although it is empty.
      id: readId(found["id"] ?? clean(properties.messageId ?? "")),
      kind: found["type"] ?? clean(properties.type || topic),
      contentType: found["datacontenttype"] ?? (isEvent ? "application/octet-stream" : contentType),
      key: found["subject"] || null,
      source: found["source"] ?? "/unknown",
      madeAt: found["time"] ?? null,
      headers: { ...Object.fromEntries(further), ...event.headers, ...free },
      problem: "",
    };
  } catch (error) {
    // What is not understood distinguishes malformed deliveries.
    if (properties.messageId !== undefined) arrived["amqp.message_id"] = clean(properties.messageId);
    const [kind, source] = [events["type"] ?? topic, events["source"] ?? "/unknown"];
    const known = { kind, source, key: events["subject"] ?? null, madeAt: events["time"] ?? null };
    return { topic, payload: body, id: null, contentType, ...known, headers: arrived, problem: clean(error) };
  }
}
