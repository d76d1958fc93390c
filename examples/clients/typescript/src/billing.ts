// Bills orders: a producer and a consumer in TypeScript, with pg and RabbitMQ.
//     DATABASE_URL=postgres://… RABBITMQ_URL=amqp://… node dist/billing.js [place ORDER CUSTOMER CENTS]
//
// It ends at the first error of database or broker, and a supervisor starts it again.

import { createHash } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import * as amqp from "amqplib";
import pg from "pg";

export const CONSUMER = process.env["CONSUMER"] ?? "billing-typescript";
export const ATTEMPTS_MAX = 10;
// One active consumer keeps the order of keys. RabbitMQ 4 drops a message of a quorum queue after 20
// deliveries, and each start of this process can be one: the limit is out of reach.
const QUEUE = { "x-queue-type": "quorum", "x-delivery-limit": 1_000_000, "x-single-active-consumer": true };

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

export type Handler = (tx: pg.Client, message: Message) => Promise<void>;
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
const clean = (text: unknown) => String(text).replaceAll("\0", "\ufffd");

/** Reads a CloudEvent from the properties of a delivery. */
export function read(topic: string, properties: Properties, payload: Buffer): Message {
  const [events, headers]: [Texts, Texts] = [{}, {}];
  for (const [name, value] of Object.entries(properties.headers ?? {})) {
    if (name.startsWith("cloudEvents_")) events[name.slice(12)] = clean(value);
    else headers[clean(name)] = clean(value);
  }
  const id = events["id"] ?? clean(properties.messageId ?? "");
  const isId = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i.test(id);
  const problem = "chunkindex" in events ? "a chunk of a larger message" : isId ? "" : `${id} is not a UUID`;
  if (problem) headers["amqp.message_id"] = clean(properties.messageId);
  return {
    topic: clean(topic),
    payload,
    id: problem ? null : id,
    kind: events["type"] ?? clean(topic),
    contentType: clean(properties.contentType ?? "application/octet-stream"),
    key: events["subject"] ?? null,
    source: events["source"] ?? "/unknown",
    madeAt: events["time"] ?? null,
    headers,
    problem,
  };
}

async function one(client: pg.Client, sql: string, values: unknown[]): Promise<unknown> {
  return (await client.query<unknown[]>({ text: sql, values, rowMode: "array" })).rows[0]?.[0];
}

/** Makes and forgets the days of the inbox. What it cannot do waits for the next hour. */
export async function maintain(client: pg.Client): Promise<void> {
  const problems = "SELECT string_agg(p, '; ') FROM inbox_maintain($1) AS p";
  const found = await one(client, problems, [new Date().toISOString().slice(0, 10)]);
  if (found) console.error(`inbox: ${String(found)}`);
}

/** Runs a function in a transaction. A client that fails here is not used again. */
export async function transaction<T>(client: pg.Client, run: () => Promise<T>): Promise<T> {
  await client.query("BEGIN");
  try {
    const result = await run();
    await client.query("SELECT 1"); // Fails if an error was swallowed: COMMIT would only roll back.
    await client.query("COMMIT");
    return result;
  } catch (error) {
    await client.query("ROLLBACK"); // Fails if the connection is lost: not the message's fault.
    throw error;
  }
}

/** Has the effect of a message once. Any answer but `again` permits its acknowledgement. */
export async function apply(client: pg.Client, message: Message, handler: Handler): Promise<string> {
  const { id, kind, contentType, payload, source } = message;
  let [reason, error] = ["malformed", message.problem];
  if (id !== null) {
    try {
      const admit = "SELECT inbox_admit($1, $2, $3, $4, $5, $6)";
      reason = await transaction(client, async () => {
        const verdict = String(await one(client, admit, [CONSUMER, id, kind, contentType, payload, source]));
        if (verdict === "new") await handler(client, message);
        return verdict;
      });
      if (["new", "duplicate", "dead_letter"].includes(reason)) return reason;
      error = `the inbox refused it: ${reason}`;
    } catch (failure) {
      error = clean(failure);
      reason = failure instanceof Reject ? "rejected" : "poison";
      const failed = "SELECT inbox_count_failure($1, $2, $3)";
      const counted = reason === "poison" && (await one(client, failed, [CONSUMER, id, error]));
      if (counted && Number(counted) < ATTEMPTS_MAX) return "again";
    }
  }
  const store = "SELECT inbox_store_dead_letter($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)";
  const cause = [reason, error, message.key, message.headers, source, message.madeAt];
  await one(client, store, [CONSUMER, id, message.topic, kind, contentType, payload, ...cause]);
  return reason;
}

/** Carries out a redrive that an operator asked for (`relay dead requeue`), if there is one. */
export async function redrive(client: pg.Client, handler: Handler): Promise<boolean> {
  const request = await one(client, "SELECT inbox_begin_redrive($1)", [CONSUMER]);
  if (request === null) return false;
  const take = `SELECT *, message_id AS id, content_type AS "contentType" FROM inbox_take_redrive($1, $2)`;
  try {
    await transaction(client, async () => {
      const row = (await client.query<Message>(take, [CONSUMER, request])).rows[0];
      if (row) await handler(client, { ...row, madeAt: null, problem: "" });
    });
  } catch (error) {
    await one(client, "SELECT inbox_fail_redrive($1, $2, $3)", [CONSUMER, request, clean(error)]);
  }
  return true;
}

/** Stores an order and enqueues its event, in the transaction of the caller. */
export async function placeOrder(tx: pg.Client, order: number, customer: string, cents: number) {
  await tx.query("INSERT INTO orders VALUES ($1, $2, $3)", [order, customer, cents]);
  const enqueue = "SELECT outbox_enqueue_json('orders', $1, key => $2, kind => 'order.placed')";
  return String(await one(tx, enqueue, [{ order, customer, cents }, customer]));
}

/** The handler: an invoice and its event, in the transaction of the inbox row. */
export const bill: Handler = async (tx, message) => {
  if (message.kind !== "order.placed") throw new Reject(`no handler for ${message.kind}`);
  const { order, customer, cents } = JSON.parse(message.payload.toString());
  const blocked = await one(tx, "SELECT name FROM blocked_customer WHERE name = $1", [customer]);
  if (blocked) throw new Reject(`customer ${customer} is blocked`);
  const insert = "INSERT INTO invoice (message_id, order_id, customer, cents) VALUES ($1, $2, $3, $4)";
  await tx.query(insert, [message.id, order, customer, cents]);
  const enqueue = "SELECT outbox_enqueue_json('invoices', $1, key => $2, kind => 'invoice.issued')";
  await one(tx, enqueue, [{ order }, customer]);
};

async function consume(client: pg.Client, handler: Handler): Promise<void> {
  // Before the first delivery: on a database that refuses work, the process ends without one.
  await maintain(client);
  await redrive(client, handler);
  const connection = await amqp.connect(process.env["RABBITMQ_URL"] ?? "");
  connection.on("close", () => process.exit(1));
  const channel = await connection.createChannel();
  await channel.assertQueue(CONSUMER, { durable: true, arguments: QUEUE }); // Bound to the relay's exchange.
  await channel.prefetch(16);
  const redrives = async () => {
    while (await redrive(client, handler));
  };
  // One thing after the other. A rejection that nobody handles ends the process.
  let last = redrives();
  setInterval(() => (last = last.then(redrives)), 5_000);
  setInterval(() => (last = last.then(() => maintain(client))), 3_600_000);
  const onDelivery = async (delivery: amqp.ConsumeMessage | null) => {
    if (!delivery) throw new Error("RabbitMQ cancelled the consumer");
    const message = read(delivery.fields.routingKey, delivery.properties, delivery.content);
    let outcome: string;
    for (let pause = 1; (outcome = await apply(client, message, handler)) === "again"; pause *= 2)
      await sleep(Math.min(pause, 60) * 1_000);
    channel.ack(delivery); // After the commit, never before it.
    console.log(message.id, outcome);
  };
  await channel.consume(CONSUMER, (delivery) => (last = last.then(() => onDelivery(delivery))));
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const patience = { keepAlive: true, keepAliveInitialDelayMillis: 30_000 }; // Until a server is gone.
  const client = new pg.Client({ connectionString: process.env["DATABASE_URL"], ...patience });
  await client.connect();
  const [command, order, customer, cents] = process.argv.slice(2);
  if (command === "place") {
    const place = () => placeOrder(client, Number(order), String(customer), Number(cents));
    console.log(await transaction(client, place));
    await client.end();
  } else {
    await consume(client, bill);
  }
}
