//! The identity of the sender of traces and metrics.

use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::resource::v1::Resource;

use crate::config::Otlp;

/// Creates a text attribute.
pub(super) fn text(key: &str, value: impl Into<String>) -> KeyValue {
    attribute(key, Value::StringValue(value.into()))
}

/// Creates an attribute.
pub(super) fn attribute(key: &str, value: Value) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }), ..KeyValue::default() }
}

/// Returns the resource of the process: the service's name, its version, and an id of this start.
pub(super) fn resource(config: &Otlp) -> Resource {
    let mut attributes = vec![
        text("service.name", config.service_name.as_str()),
        text("service.version", env!("CARGO_PKG_VERSION")),
        text("service.instance.id", uuid::Uuid::now_v7().to_string()),
    ];
    for (name, value) in &config.resource {
        attributes.retain(|known| known.key != *name);
        attributes.push(text(name, value.as_str()));
    }
    Resource { attributes, ..Resource::default() }
}

/// Returns the scope of all measurements.
pub(super) fn scope() -> InstrumentationScope {
    InstrumentationScope {
        name: String::from("outbox-toolkit-relay"),
        version: String::from(env!("CARGO_PKG_VERSION")),
        ..InstrumentationScope::default()
    }
}
