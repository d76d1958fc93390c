//! The code that the example services share: settings, database, the event, the provider's client,
//! and the stop condition of a consumer.
//!
//! | binary | shows |
//! |---|---|
//! | `order_service` | a producer: business row and message in one transaction, PostgreSQL |
//! | `billing_kafka`, `billing_rabbitmq`, `billing_sqs` | a consumer that bills every order once, on each broker |
//! | `invoicing` | a consumer with state that enqueues in the transaction of its effect |
//! | `orders_api` | a web service whose clients may repeat requests: idempotency keys in axum, PostgreSQL |
//! | `orders_grpc`, with `proto/orders.proto` | the same in gRPC with tonic: [`grpc::once`], PostgreSQL |
//! | `webhook_receiver` | a web service that a relay posts orders to: an inbox behind a webhook, PostgreSQL |
//! | `accounts`, with [`accounts`] | event sourcing with cqrs-es: each event and its message in one transaction, PostgreSQL |
//! | `payments_rabbitmq` | a consumer that charges every order once at a payment provider, PostgreSQL |
//! | `checkout`, with `bank` and `shipping/shipping.py` | a saga over three services on RabbitMQ, one of them in Python |
//! | `embedded_relay` | producer, relay and consumer in one process, SQLite |
//! | `embedded_page` | a web service with a relay and its page for operators, behind a login of its own, SQLite |
//! | `health` (module) | routes for probes of a service with a consumer and a relay: `tests/health.rs` |
//! | `wallet` (module) | a service with tests that use the crate `testkit`: `tests/wallet.rs` |
//! | `plain-sql/place_order.sql`, `plain-sql/bill_order.sql` | a producer and a consumer in plain SQL |

pub mod accounts;
pub mod billing;
pub mod broken;
pub mod checkout;
pub mod consuming;
pub mod database;
pub mod grpc;
pub mod health;
pub mod order;
mod pages;
pub mod payments;
pub mod provider;
pub mod setting;
pub mod wallet;
