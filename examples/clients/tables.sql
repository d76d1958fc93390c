-- The business tables of the examples. No row of an invoice is unique by its order: the inbox alone
-- keeps an order from being billed twice.
CREATE TABLE IF NOT EXISTS orders (
    id       bigint PRIMARY KEY,
    customer text   NOT NULL,
    cents    bigint NOT NULL
);
CREATE TABLE IF NOT EXISTS blocked_customer (name text PRIMARY KEY);
CREATE TABLE IF NOT EXISTS invoice (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    message_id uuid   NOT NULL,
    order_id   bigint NOT NULL,
    customer   text   NOT NULL,
    cents      bigint NOT NULL
);
