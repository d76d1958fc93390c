//! Settings from the environment, which override those of the file:
//! `RELAY__<PIPELINE>__DATABASE__URL`, `RELAY__LOG__LEVEL`, `RELAY__HTTP__LISTEN`,
//! `RELAY__PAGE__LISTEN`.
//!
//! A double underscore separates the steps of the path. A pipeline's name is in upper case, with
//! `_` for `-`.

use super::decode::Wrong;
use super::tree::{Entry, Node, Origin, Table, Value};
use crate::near;

/// The prefix of the name of every override.
pub(crate) const PREFIX: &str = "RELAY__";

/// Returns the name of a pipeline in the environment.
pub(crate) fn name_in_env(pipeline: &str) -> String {
    pipeline.to_uppercase().replace('-', "_")
}

/// Lays the variables over the tree. A pipeline must be in the file. Whether a setting exists is
/// checked later, when the tree is decoded.
pub(crate) fn overlay(
    tree: &mut Node,
    variables: impl IntoIterator<Item = (String, String)>,
) -> Result<(), Wrong> {
    let mut variables: Vec<_> = variables.into_iter().filter(|(name, _)| name.starts_with(PREFIX)).collect();
    variables.sort();
    for (name, text) in variables {
        let origin = Origin::Env(name.clone());
        let mut steps: Vec<&str> = name.split("__").skip(1).collect();
        if steps.len() < 2 || steps.iter().any(|step| step.is_empty()) {
            return Err(wrong(
                origin,
                "is not the name of a setting",
                "write RELAY__<PIPELINE>__<SECTION>__<SETTING>",
            ));
        }
        let section = steps.remove(0);
        let target = match section {
            "LOG" => section_in(tree, "log", &origin)?,
            "HTTP" => section_in(tree, "http", &origin)?,
            "OTLP" => section_in(tree, "otlp", &origin)?,
            "PAGE" => section_in(tree, "page", &origin)?,
            pipeline => pipeline_in(tree, pipeline, &origin)?,
        };
        let steps: Vec<String> = steps.into_iter().map(str::to_lowercase).collect();
        set(target, &steps, text, &origin)?;
    }
    Ok(())
}

/// Sets one value of a section, and creates the sections on the way to it.
pub(crate) fn set(
    mut section: &mut Node,
    path: &[String],
    text: String,
    origin: &Origin,
) -> Result<(), Wrong> {
    let Some((last, sections)) = path.split_last() else { return Ok(()) };
    for step in sections {
        section = section_in(section, step, origin)?;
    }
    let table = table_of(section, origin)?;
    // A secret is given as a text or as a file; an override of one replaces the other.
    let other = last.strip_suffix("_file").map_or_else(|| format!("{last}_file"), str::to_owned);
    if table.get(&other).is_some_and(|entry| matches!(entry.node.origin, Origin::File(_))) {
        table.remove(&other);
    }
    let node = Node { value: Value::Text(text), origin: origin.clone() };
    table.insert(last.clone(), Entry { key_origin: origin.clone(), node });
    Ok(())
}

/// Returns the section with this name, which is created if it is missing.
pub(crate) fn section_in<'a>(node: &'a mut Node, name: &str, origin: &Origin) -> Result<&'a mut Node, Wrong> {
    let table = table_of(node, origin)?;
    let entry = table.entry(name.to_owned()).or_insert_with(|| Entry {
        key_origin: origin.clone(),
        node: Node { value: Value::Table(Table::new()), origin: origin.clone() },
    });
    Ok(&mut entry.node)
}

fn table_of<'a>(node: &'a mut Node, origin: &Origin) -> Result<&'a mut Table, Wrong> {
    let kind = node.kind();
    match &mut node.value {
        Value::Table(table) => Ok(table),
        _ => Err(wrong(
            origin.clone(),
            format!("refers to a setting inside {kind}; only sections have settings"),
            "shorten the name",
        )),
    }
}

fn pipeline_in<'a>(tree: &'a mut Node, wanted: &str, origin: &Origin) -> Result<&'a mut Node, Wrong> {
    let mut known = Vec::new();
    if let Value::Table(table) = &mut tree.value
        && let Some(Entry { node: Node { value: Value::List(pipelines), .. }, .. }) =
            table.get_mut("pipeline")
    {
        for node in pipelines {
            let Value::Text(name) = &node.nearest("name").value else { continue };
            let name = name_in_env(name);
            if name == wanted {
                return Ok(node);
            }
            known.push(name);
        }
    }
    known.extend(["LOG", "HTTP", "OTLP", "PAGE"].map(String::from));
    let meant = near::meant(wanted, known.iter().map(String::as_str));
    Err(wrong(
        origin.clone(),
        format!("the file has no pipeline named {wanted}"),
        format!("{meant}valid names: {}", known.join(", ")),
    ))
}

fn wrong(origin: Origin, message: impl Into<String>, help: impl Into<String>) -> Wrong {
    Wrong { path: String::new(), message: message.into(), help: Some(help.into()), origin: Some(origin) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "[[pipeline]]\nname = 'order-events'\n[pipeline.database]\nurl_file = '/run/url'\n";

    fn overlaid(name: &str, text: &str) -> Result<Node, Wrong> {
        let mut tree = Node::parse(FILE).ok().unwrap();
        overlay(&mut tree, [(name.to_owned(), text.to_owned()), ("PATH".to_owned(), "/bin".to_owned())])?;
        Ok(tree)
    }

    #[test]
    fn a_variable_replaces_the_file_and_the_other_form_of_a_secret() {
        let tree = overlaid("RELAY__ORDER_EVENTS__DATABASE__URL", "sqlite:x").ok().unwrap();
        let url = tree.nearest("pipeline[0].database.url");
        assert!(matches!(&url.value, Value::Text(text) if text == "sqlite:x"));
        assert_eq!(url.origin, Origin::Env("RELAY__ORDER_EVENTS__DATABASE__URL".into()));
        let Value::Table(database) = &tree.nearest("pipeline[0].database").value else { panic!("a section") };
        assert!(!database.contains_key("url_file"));
    }

    #[test]
    fn sections_are_made_on_the_way() {
        let tree = overlaid("RELAY__ORDER_EVENTS__KAFKA__SASL__PASSWORD", "p").ok().unwrap();
        assert!(matches!(tree.nearest("pipeline[0].kafka.sasl.password").value, Value::Text(_)));
        let tree = overlaid("RELAY__LOG__LEVEL", "debug").ok().unwrap();
        assert!(matches!(&tree.nearest("log.level").value, Value::Text(text) if text == "debug"));
    }

    #[test]
    fn a_variable_that_leads_nowhere_is_refused_by_name() {
        for (name, message) in [
            ("RELAY__PAYMENTS__DATABASE__URL", "the file has no pipeline named PAYMENTS"),
            ("RELAY__ORDER_EVENTS", "is not the name of a setting"),
            ("RELAY__ORDER_EVENTS____URL", "is not the name of a setting"),
            ("RELAY__ORDER_EVENTS__NAME__URL", "refers to a setting inside a string"),
        ] {
            let error = overlaid(name, "s3cret").err().expect(name);
            assert!(error.message.contains(message), "{error}");
            assert_eq!(error.origin, Some(Origin::Env(name.to_owned())));
            assert!(!format!("{error:?}").contains("s3cret"));
        }
        let help = overlaid("RELAY__PAYMENTS__X", "").err().unwrap().help.unwrap();
        assert_eq!(help, "valid names: ORDER_EVENTS, LOG, HTTP, OTLP, PAGE");
    }
}
