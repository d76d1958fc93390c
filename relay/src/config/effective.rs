//! The settings in force after file, environment, flags and defaults: as TOML for people, as JSON
//! for machines. Both leave out secrets.

use std::collections::BTreeSet;
use std::fmt::{self, Write};

use serde_json::{Map, Value as Json};

use super::tree::{Entry, Node, Origin, Table, Value};
use super::{Config, Otlp, redact};
use engine::{EngineOptions, SettingValue};
use operate::PipelineConfig;
use operate::units::{Size, Time};

/// The settings in force. Displayed as TOML with the origin of each setting that does not come from
/// the file.
pub(crate) struct Effective(Node);

impl Effective {
    /// Adds the defaults of log, database and engine to the given settings. Brokers' settings
    /// appear only where they are given: their defaults are documented with the adapters.
    pub(crate) fn new(mut tree: Node, config: &Config) -> Self {
        if let Value::Table(root) = &mut tree.value {
            section(root, "log", |log| {
                add(log, "format", Value::Text(config.log.format.as_str().to_owned()));
                add(log, "level", Value::Text(config.log.level.clone()));
            });
            section(root, "http", |http| {
                let topics_max = i64::try_from(config.http.topics_max).unwrap_or(i64::MAX);
                add(http, "topics_max", Value::Integer(topics_max));
                for (name, time) in [
                    ("poll_interval", config.http.poll_interval),
                    ("unready_after", config.http.unready_after),
                ] {
                    add(http, name, Value::Text(Time(time).to_string()));
                }
            });
            if let Some(otlp) = &config.otlp {
                section(root, "otlp", |section| fill_otlp(section, otlp));
            }
            if let Some(page) = &config.page {
                section(root, "page", |section| {
                    add(section, "behind_proxy", Value::Bool(page.behind_proxy));
                });
            }
            if let Some(Entry { node: Node { value: Value::List(nodes), .. }, .. }) = root.get_mut("pipeline")
            {
                for (node, pipeline) in nodes.iter_mut().zip(&config.pipelines) {
                    if let Value::Table(table) = &mut node.value {
                        fill(table, pipeline);
                    }
                }
            }
        }
        Self(tree)
    }

    /// Returns one row for each setting with its origin, in the order of the paths. Secrets are
    /// masked.
    #[must_use]
    pub(crate) fn settings(&self) -> Vec<EffectiveSetting> {
        let mut settings = Vec::new();
        collect(&self.0, String::new(), &mut Vec::new(), &mut settings);
        settings
    }

    /// Returns the paths of the settings that differ from `other`, secrets included, without their
    /// values.
    #[must_use]
    pub(crate) fn changed(&self, other: &Self) -> Vec<String> {
        let mut paths = Vec::new();
        differences(&self.0, &other.0, "", &mut paths);
        paths
    }

    /// Returns the settings as JSON, without secrets.
    #[must_use]
    pub(crate) fn to_json(&self) -> Json {
        json(&self.0, &mut Vec::new())
    }
}

/// A setting in force.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub(crate) struct EffectiveSetting {
    /// The path: `pipeline[0].engine.window`.
    pub(crate) setting: String,
    /// The value; a secret is masked.
    pub(crate) value: Json,
    /// `file`, `default`, or the name of the variable or flag.
    pub(crate) origin: String,
}

fn collect<'a>(node: &'a Node, shown: String, path: &mut Vec<&'a str>, out: &mut Vec<EffectiveSetting>) {
    match &node.value {
        Value::Table(table) => {
            for (key, entry) in table {
                let dot = if shown.is_empty() { "" } else { "." };
                path.push(key);
                collect(&entry.node, format!("{shown}{dot}{}", quoted(key)), path, out);
                path.pop();
            }
        }
        Value::List(items) if items.iter().any(|item| matches!(item.value, Value::Table(_))) => {
            for (index, item) in items.iter().enumerate() {
                collect(item, format!("{shown}[{index}]"), path, out);
            }
        }
        _ => {
            let origin = match &node.origin {
                Origin::File(_) => String::from("file"),
                Origin::Default => String::from("default"),
                Origin::Env(name) => name.clone(),
                Origin::Flag(name) => (*name).to_owned(),
            };
            out.push(EffectiveSetting { setting: shown, value: json(node, path), origin });
        }
    }
}

fn differences(one: &Node, other: &Node, path: &str, paths: &mut Vec<String>) {
    match (&one.value, &other.value) {
        (Value::Table(one), Value::Table(other)) => {
            let keys: BTreeSet<&String> = one.keys().chain(other.keys()).collect();
            for key in keys {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                match (one.get(key), other.get(key)) {
                    (Some(one), Some(other)) => differences(&one.node, &other.node, &path, paths),
                    _ => paths.push(path),
                }
            }
        }
        (Value::List(one), Value::List(other)) if one.len() == other.len() => {
            for (index, (one, other)) in one.iter().zip(other).enumerate() {
                differences(one, other, &format!("{path}[{index}]"), paths);
            }
        }
        (Value::Text(one), Value::Text(other)) if one == other => {}
        (Value::Integer(one), Value::Integer(other)) if one == other => {}
        (Value::Float(one), Value::Float(other)) if one == other => {}
        (Value::Bool(one), Value::Bool(other)) if one == other => {}
        _ => paths.push(path.to_owned()),
    }
}

fn fill(table: &mut Table, pipeline: &PipelineConfig) {
    add(table, "source", Value::Text(pipeline.source.as_str().to_owned()));
    section(table, "database", |database| {
        add(database, "allow_plaintext", Value::Bool(false));
        add(database, "retention", Value::Text(pipeline.retention.to_string()));
        add(database, "audit_retention", Value::Text(pipeline.audit_retention.to_string()));
    });
    section(table, "engine", |engine| fill_engine(engine, &pipeline.settings));
}

fn fill_otlp(section: &mut Table, otlp: &Otlp) {
    add(section, "service_name", Value::Text(otlp.service_name.clone()));
    add(section, "sampling", Value::Float(otlp.sampling));
    add(section, "traces", Value::Bool(otlp.traces.is_some()));
    add(section, "metrics", Value::Bool(otlp.metrics.is_some()));
    for (name, time) in [("metrics_interval", otlp.metrics_interval), ("timeout", otlp.timeout)] {
        add(section, name, Value::Text(Time(time).to_string()));
    }
    add(section, "allow_plaintext", Value::Bool(false));
}

fn fill_engine(engine: &mut Table, settings: &EngineOptions) {
    for (key, value) in settings.values() {
        let value = match value {
            SettingValue::Count(count) => Value::Integer(i64::try_from(count).unwrap_or(i64::MAX)),
            SettingValue::Number(number) => Value::Integer(number.into()),
            text => Value::Text(text.to_string()),
        };
        add(engine, key, value);
    }
    let limit = Size(settings.size_limit.message_bytes_max);
    add(engine, "message_bytes_max", Value::Text(limit.to_string()));
    let oversize = if settings.chunking.is_some() { "chunk" } else { "refuse" };
    add(engine, "oversize", Value::Text(oversize.to_owned()));
    if let Some(splitter) = &settings.chunking {
        add(engine, "chunked_bytes_max", Value::Text(Size(splitter.chunked_bytes_max).to_string()));
    }
}

/// Adds to a section, which is created if it is missing.
fn section(table: &mut Table, name: &str, fill: impl FnOnce(&mut Table)) {
    let entry = table.entry(name.to_owned()).or_insert_with(|| Entry {
        key_origin: Origin::Default,
        node: Node { value: Value::Table(Table::new()), origin: Origin::Default },
    });
    if let Value::Table(table) = &mut entry.node.value {
        fill(table);
    }
}

fn add(table: &mut Table, name: &str, value: Value) {
    let node = Node { value, origin: Origin::Default };
    table.entry(name.to_owned()).or_insert(Entry { key_origin: Origin::Default, node });
}

fn json<'a>(node: &'a Node, path: &mut Vec<&'a str>) -> Json {
    match &node.value {
        Value::Table(table) => {
            let mut object = Map::new();
            for (key, entry) in table {
                path.push(key);
                object.insert(key.clone(), json(&entry.node, path));
                path.pop();
            }
            Json::Object(object)
        }
        Value::List(list) => Json::Array(list.iter().map(|item| json(item, path)).collect()),
        _ if redact::is_secret(path) => Json::String(redact::text(path, "")),
        Value::Text(text) => Json::String(redact::text(path, text)),
        Value::Integer(number) => (*number).into(),
        Value::Float(number) => (*number).into(),
        Value::Bool(bool) => (*bool).into(),
    }
}

impl fmt::Display for Effective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        if let Value::Table(root) = &self.0.value {
            toml(root, &mut Vec::new(), &mut text)?;
        }
        f.write_str(text.trim_start())
    }
}

/// Writes values before sections: everything after a section's header belongs to that section.
fn toml<'a>(table: &'a Table, path: &mut Vec<&'a str>, out: &mut String) -> fmt::Result {
    for (key, entry) in table {
        path.push(key);
        if let Some(value) = scalar(&entry.node, path) {
            let line = format!("{} = {value}", quoted(key));
            match &entry.node.origin {
                Origin::File(_) => writeln!(out, "{line}")?,
                Origin::Env(name) => writeln!(out, "{line:<48} # from {name}")?,
                Origin::Flag(name) => writeln!(out, "{line:<48} # from {name}")?,
                Origin::Default => writeln!(out, "{line:<48} # default")?,
            }
        }
        path.pop();
    }
    for (key, entry) in table {
        path.push(key);
        let header = path.iter().map(|step| quoted(step)).collect::<Vec<_>>().join(".");
        match &entry.node.value {
            Value::Table(inner) => {
                writeln!(out, "\n[{header}]")?;
                toml(inner, path, out)?;
            }
            Value::List(items) => {
                for item in items {
                    if let Value::Table(inner) = &item.value {
                        writeln!(out, "\n[[{header}]]")?;
                        toml(inner, path, out)?;
                    }
                }
            }
            _ => {}
        }
        path.pop();
    }
    Ok(())
}

/// Formats a value on one line. Returns `None` for sections and lists of them.
fn scalar(node: &Node, path: &[&str]) -> Option<String> {
    Some(match &node.value {
        Value::Table(_) => return None,
        _ if redact::is_secret(path) => text(&redact::text(path, "")),
        Value::Text(value) => text(&redact::text(path, value)),
        Value::Integer(number) => number.to_string(),
        Value::Float(number) => number.to_string(),
        Value::Bool(bool) => bool.to_string(),
        Value::List(items) => {
            let items: Option<Vec<String>> = items.iter().map(|item| scalar(item, path)).collect();
            format!("[{}]", items?.join(", "))
        }
    })
}

fn text(value: &str) -> String {
    toml::Value::from(value).to_string()
}

fn quoted(key: &str) -> String {
    let bare = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    if !key.is_empty() && key.chars().all(bare) { key.to_owned() } else { text(key) }
}
