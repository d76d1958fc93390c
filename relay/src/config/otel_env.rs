//! The standard variables of OpenTelemetry, as defaults of the section `[otlp]`: they apply where
//! neither the file nor a `RELAY__OTLP__…` variable sets a value.

use super::decode::Wrong;
use super::env;
use super::tree::{Node, Origin, Value};

/// The variables that name a collector. Without one, and without the section, nothing is sent.
const ENDPOINTS: [(&str, &str); 3] = [
    ("OTEL_EXPORTER_OTLP_ENDPOINT", "endpoint"),
    ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "traces_endpoint"),
    ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "metrics_endpoint"),
];

const HEADERS: &str = "OTEL_EXPORTER_OTLP_HEADERS";
const RESOURCE: &str = "OTEL_RESOURCE_ATTRIBUTES";
const PROTOCOL: &str = "OTEL_EXPORTER_OTLP_PROTOCOL";
const DISABLED: &str = "OTEL_SDK_DISABLED";

/// Lays the variables under the tree, unless the SDK is disabled.
pub(super) fn underlay(tree: &mut Node, variables: &[(String, String)]) -> Result<(), Wrong> {
    let variable = |wanted: &str| {
        let found = variables.iter().find(|(name, text)| name == wanted && !text.trim().is_empty());
        found.map(|(_, text)| text.trim())
    };
    let is_section = matches!(&tree.value, Value::Table(root) if root.contains_key("otlp"));
    let is_named = ENDPOINTS.iter().any(|(name, _)| variable(name).is_some());
    let is_disabled = variable(DISABLED).is_some_and(|text| text.eq_ignore_ascii_case("true"));
    if is_disabled || !(is_section || is_named) {
        return Ok(());
    }
    if let Some(text) = variable(PROTOCOL)
        && text != "http/protobuf"
    {
        let message = format!("the relay does not support the protocol {text:?}");
        return Err(wrong(PROTOCOL, message, "set http/protobuf, and the collector's port for it (4318)"));
    }
    for (name, setting) in ENDPOINTS.into_iter().chain([("OTEL_SERVICE_NAME", "service_name")]) {
        if let Some(text) = variable(name) {
            put(tree, name, &[setting], text.to_owned())?;
        }
    }
    for (name, setting) in
        [("OTEL_EXPORTER_OTLP_TIMEOUT", "timeout"), ("OTEL_METRIC_EXPORT_INTERVAL", "metrics_interval")]
    {
        if let Some(text) = variable(name) {
            let millis: u64 = text
                .parse()
                .map_err(|_| wrong(name, format!("{text:?} is not a number of milliseconds"), ""))?;
            put(tree, name, &[setting], format!("{millis}ms"))?;
        }
    }
    if let Some(text) = variable("OTEL_EXPORTER_OTLP_INSECURE") {
        put(tree, "OTEL_EXPORTER_OTLP_INSECURE", &["allow_plaintext"], text.to_ascii_lowercase())?;
    }
    for (name, setting) in [("OTEL_TRACES_EXPORTER", "traces"), ("OTEL_METRICS_EXPORTER", "metrics")] {
        if variable(name) == Some("none") {
            put(tree, name, &[setting], String::from("false"))?;
        }
    }
    if let Some(text) = variable(HEADERS)
        && !is_set(tree, "headers_file")
    {
        for (name, value) in pairs(HEADERS, text)? {
            put(tree, HEADERS, &["headers", &name.to_ascii_lowercase()], value)?;
        }
    }
    if let Some(text) = variable(RESOURCE) {
        for (name, value) in pairs(RESOURCE, text)? {
            match name.as_str() {
                "service.name" => put(tree, RESOURCE, &["service_name"], value)?,
                name => put(tree, RESOURCE, &["resource", name], value)?,
            }
        }
    }
    Ok(())
}

fn is_set(tree: &Node, setting: &str) -> bool {
    let section = tree.nearest("otlp");
    matches!(&section.value, Value::Table(table) if table.contains_key(setting))
}

/// Sets a value of the section, unless it is already set.
fn put(tree: &mut Node, variable: &str, path: &[&str], text: String) -> Result<(), Wrong> {
    let origin = Origin::Env(variable.to_owned());
    let mut section = env::section_in(tree, "otlp", &origin)?;
    let Some((last, sections)) = path.split_last() else { return Ok(()) };
    for step in sections {
        section = env::section_in(section, step, &origin)?;
    }
    if matches!(&section.value, Value::Table(table) if table.contains_key(*last)) {
        return Ok(());
    }
    env::set(section, &[(*last).to_owned()], text, &origin)
}

/// Parses `name=value,name=value` and decodes the percent-encoding.
fn pairs(variable: &str, text: &str) -> Result<Vec<(String, String)>, Wrong> {
    parse_pairs(text).map_err(|position| {
        let message = format!("part {position} is not name=value, or its percent-encoding is invalid");
        wrong(variable, message, "separate pairs with commas: api-key=secret,x-tenant=shop")
    })
}

/// Parses `name=value` pairs separated by commas or line breaks. An error is the number of the
/// first invalid pair.
pub(crate) fn parse_pairs(text: &str) -> Result<Vec<(String, String)>, usize> {
    let parts = text.split([',', '\n']).map(str::trim).enumerate().filter(|(_, part)| !part.is_empty());
    parts
        .map(|(index, part)| {
            let (name, value) = part.split_once('=').ok_or(index + 1)?;
            let name = name.trim();
            let value = percent_decoded(value.trim()).ok_or(index + 1)?;
            if name.is_empty() { Err(index + 1) } else { Ok((name.to_owned(), value)) }
        })
        .collect()
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
        let (high, low) = (digit(rest.next())?, digit(rest.next())?);
        bytes.push(u8::try_from(high * 16 + low).ok()?);
    }
    String::from_utf8(bytes).ok()
}

fn wrong(variable: &str, message: impl Into<String>, help: &str) -> Wrong {
    let help = (!help.is_empty()).then(|| help.to_owned());
    Wrong {
        path: String::new(),
        message: message.into(),
        help,
        origin: Some(Origin::Env(variable.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn laid(file: &str, variables: &[(&str, &str)]) -> Result<Node, Wrong> {
        let mut tree = Node::parse(file).ok().unwrap();
        let variables: Vec<_> =
            variables.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
        underlay(&mut tree, &variables)?;
        Ok(tree)
    }

    fn text(tree: &Node, path: &str) -> Option<String> {
        match &tree.nearest(path).value {
            Value::Text(text) => Some(text.clone()),
            _ => None,
        }
    }

    #[test]
    fn the_file_wins_over_the_standard_variables() {
        let variables = [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "api-key=a%20b, x=y"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "2500"),
            ("OTEL_RESOURCE_ATTRIBUTES", "service.name=shop,team=pay"),
            ("OTEL_TRACES_EXPORTER", "none"),
        ];
        let tree = laid("[otlp]\nendpoint = 'http://127.0.0.1:2'\n", &variables).ok().unwrap();
        for (path, expected) in [
            ("otlp.endpoint", "http://127.0.0.1:2"),
            ("otlp.headers.api-key", "a b"),
            ("otlp.headers.x", "y"),
            ("otlp.timeout", "2500ms"),
            ("otlp.service_name", "shop"),
            ("otlp.resource.team", "pay"),
            ("otlp.traces", "false"),
        ] {
            assert_eq!(text(&tree, path).as_deref(), Some(expected), "{path}");
        }
        assert_eq!(
            tree.nearest("otlp.timeout").origin,
            Origin::Env(String::from("OTEL_EXPORTER_OTLP_TIMEOUT"))
        );
    }

    #[test]
    fn nothing_is_sent_without_an_endpoint_or_by_a_disabled_sdk() {
        for variables in [
            &[("OTEL_SERVICE_NAME", "shop"), ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")][..],
            &[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1"), ("OTEL_SDK_DISABLED", "true")],
        ] {
            let tree = laid("", variables).ok().unwrap();
            assert!(matches!(&tree.value, Value::Table(root) if root.is_empty()));
        }
    }

    #[test]
    fn a_variable_that_cannot_be_read_is_named_without_its_value() {
        for (name, value) in [
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "a=b,s3cret"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "a=s3cret%2"),
        ] {
            let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1");
            let error = laid("", &[endpoint, (name, value)]).err().expect(name);
            assert_eq!(error.origin, Some(Origin::Env(name.to_owned())));
            assert!(!format!("{error:?}").contains("s3cret"), "{error:?}");
        }
    }
}
