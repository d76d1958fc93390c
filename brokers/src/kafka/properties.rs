//! Decides which of librdkafka's properties an operator may set: all except those that this adapter
//! sets.

use crate::settings::InvalidSetting;

/// Properties that order, durability or settlement depend on.
const GUARANTEES: [&str; 22] = [
    "acks",
    "request.required.acks",
    "enable.idempotence",
    "enable.gapless.guarantee",
    "transactional.id",
    "retries",
    "message.send.max.retries",
    "delivery.timeout.ms",
    "message.timeout.ms",
    "partitioner",
    "sticky.partitioning.linger.ms",
    "queuing.strategy",
    "enable.auto.commit",
    "auto.commit.enable",
    "enable.auto.offset.store",
    "auto.offset.reset",
    "offset.store.method",
    "enable.partition.eof",
    "group.protocol",
    "partition.assignment.strategy",
    "log.queue",
    "delivery.report.only.error",
];

/// Properties that have their own setting here, each with that setting.
const SETTINGS: [(&str, &str); 27] = [
    ("bootstrap.servers", "bootstrap_servers"),
    ("metadata.broker.list", "bootstrap_servers"),
    ("client.id", "client_id"),
    ("security.protocol", "tls and sasl"),
    ("ssl.ca.location", "tls.ca_file"),
    ("ssl.certificate.location", "tls.cert_file"),
    ("ssl.key.location", "tls.key_file"),
    ("enable.ssl.certificate.verification", "tls.verify"),
    ("ssl.endpoint.identification.algorithm", "tls.verify"),
    ("sasl.mechanism", "sasl.mechanism"),
    ("sasl.mechanisms", "sasl.mechanism"),
    ("sasl.username", "sasl.username"),
    ("sasl.password", "sasl.password"),
    ("compression.type", "compression"),
    ("compression.codec", "compression"),
    ("linger.ms", "linger_ms"),
    ("queue.buffering.max.ms", "linger_ms"),
    ("batch.num.messages", "linger_ms"),
    ("message.max.bytes", "message_bytes_max"),
    ("queue.buffering.max.kbytes", "queue_bytes_max"),
    ("queue.buffering.max.messages", "queue_bytes_max"),
    ("allow.auto.create.topics", "create_topics"),
    ("group.id", "the subscription's group"),
    ("session.timeout.ms", "the subscription's session_timeout_ms"),
    ("queued.min.messages", "the subscription's prefetch_len"),
    ("statistics.interval.ms", "this adapter, to watch the client"),
    ("isolation.level", "this adapter, to read only committed messages"),
];

/// Maximum number of produce requests per connection that an idempotent producer may have in flight
/// (KIP-98).
const IN_FLIGHT_MAX: u8 = 5;

/// Checks whether an operator may set this property to this value.
///
/// # Errors
/// [`InvalidSetting`] naming the setting to use instead, or the reason why there is none.
pub(super) fn check(name: &str, value: &str) -> Result<(), InvalidSetting> {
    let refused = |problem: String| Err(InvalidSetting::new(format!("kafka.properties.{name}"), problem));
    if GUARANTEES.contains(&name) {
        return refused(String::from("cannot be set: order and durability depend on its fixed value"));
    }
    if matches!(name, "max.in.flight" | "max.in.flight.requests.per.connection")
        && !value.parse().is_ok_and(|requests: u8| (1..=IN_FLIGHT_MAX).contains(&requests))
    {
        return refused(format!("is {value:?}; only 1 to {IN_FLIGHT_MAX} keep the order"));
    }
    if let Some((_, setting)) = SETTINGS.iter().find(|(property, _)| *property == name) {
        return refused(format!("is set by {setting}; remove it here"));
    }
    if name == "check.crcs" {
        // 2.12.1, `rd_kafka_msgset_reader_v2`: it mistakes the length of the batch for a position.
        return refused(String::from(
            "is not supported: behind a damaged batch, librdkafka would continue at a wrong offset; remove it, and use tls against damage by the network",
        ));
    }
    if name.starts_with("sasl.oauthbearer.") || name == "enable.sasl.oauthbearer.unsecure.jwt" {
        return refused(String::from("is set by sasl.oauth; remove it here"));
    }
    // These load a shared library into the process: an author of the configuration could run any
    // code.
    if matches!(name, "plugin.library.paths" | "ssl.engine.location" | "ssl.providers")
        || name.starts_with("test.mock.")
    {
        return refused(String::from("is not supported; remove it"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guarantees_cannot_be_switched_off_and_the_rest_passes() {
        for name in
            ["acks", "enable.idempotence", "partitioner", "plugin.library.paths", "ssl.engine.location"]
        {
            assert!(check(name, "1").is_err(), "{name}");
        }
        assert!(check("linger.ms", "5").unwrap_err().problem.contains("linger_ms"));
        assert!(check("sasl.oauthbearer.method", "oidc").unwrap_err().problem.contains("sasl.oauth"));
        assert!(check("check.crcs", "true").unwrap_err().problem.contains("damaged"));
        for name in ["socket.keepalive.enable", "socket.send.buffer.bytes", "fetch.min.bytes"] {
            assert!(check(name, "1").is_ok(), "{name}");
        }
    }

    #[test]
    fn as_many_requests_are_in_flight_as_order_allows() {
        for name in ["max.in.flight", "max.in.flight.requests.per.connection"] {
            for (value, allowed) in [("1", true), ("5", true), ("0", false), ("6", false), ("many", false)] {
                assert_eq!(check(name, value).is_ok(), allowed, "{name} = {value}");
            }
        }
    }
}
