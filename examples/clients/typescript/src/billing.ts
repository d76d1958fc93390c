// Bills orders: a producer and a consumer in TypeScript, with pg and RabbitMQ.
//     DATABASE_URL=postgres://… RABBITMQ_URL=amqp://… node dist/billing.js [place ORDER CUSTOMER CENTS]
//
// It ends at the first error of database or broker, and a supervisor starts it again.

import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import * as amqp from "amqplib";
import pg from "pg";
import { clean, read, Reject, type Message } from "./message.js";

export const CONSUMER = process.env["CONSUMER"] ?? "billing-typescript";
export const ATTEMPTS_MAX = 10;
// One active consumer keeps the order of keys. RabbitMQ 4 drops a message of a quorum queue after 20
// deliveries, and each start of this process can be one: the limit is out of reach.
const QUEUE = { "x-queue-type": "quorum", "x-delivery-limit": 1_000_000, "x-single-active-consumer": true };
// A handler that hangs keeps its message from other processes for a minute: then its session is ended.
const IDLE = "set_config('idle_in_transaction_session_timeout', '60s', true)";

export type Handler = (tx: pg.Client, message: Message) => Promise<void>;

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
    const { command } = await client.query("COMMIT");
    if (command !== "COMMIT") throw new Error("rolled back: an error of the database was swallowed");
    return result;
  } catch (error) {
    await client.query("ROLLBACK"); // Fails if the connection is lost: not the message's fault.
    throw error;
  }
}

/** Runs a handler, then proves that its transaction is the one that admitted the message. */
async function handle(client: pg.Client, message: Message, handler: Handler): Promise<void> {
  await handler(client, message);
  await one(client, "SELECT inbox_finish($1, $2)", [CONSUMER, message.id]);
}

/** Has the effect of a message once. Any answer but `again` permits its acknowledgement. */
export async function apply(client: pg.Client, message: Message, handler: Handler): Promise<string> {
  const { id, kind, contentType, payload, source } = message;
  let [reason, error] = ["malformed", message.problem];
  if (id !== null) {
    try {
      const admit = "SELECT inbox_admit($1, $2, $3, $4, $5, $6) FROM " + IDLE;
      reason = await transaction(client, async () => {
        const verdict = String(await one(client, admit, [CONSUMER, id, kind, contentType, payload, source]));
        if (verdict === "new") await handle(client, message, handler);
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
  const take = `SELECT *, message_id AS id, content_type AS "contentType"
    FROM inbox_take_redrive($1, $2), ${IDLE}`;
  try {
    await transaction(client, async () => {
      const row = (await client.query<Message>(take, [CONSUMER, request])).rows[0];
      if (row) await handle(client, { ...row, madeAt: null, problem: "" }, handler);
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

/** The order in a payload. */
function orderOf(message: Message): { order: number; customer: string; cents: number } {
  let problem = "a field is missing";
  try {
    const { order, customer, cents } = JSON.parse(message.payload.toString());
    const isOrder =
      Number.isSafeInteger(order) && Number.isSafeInteger(cents) && typeof customer === "string";
    if (isOrder) return { order, customer, cents };
  } catch (error) {
    problem = String(error);
  }
  throw new Reject(`the payload is no order: ${problem}`);
}

/** The handler: an invoice and its event, in the transaction of the inbox row. */
export const bill: Handler = async (tx, message) => {
  if (message.kind !== "order.placed") throw new Reject(`no handler for ${message.kind}`);
  const { order, customer, cents } = orderOf(message);
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
