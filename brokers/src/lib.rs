//! Publishers and subscriptions for Kafka, RabbitMQ, SQS and memory.
