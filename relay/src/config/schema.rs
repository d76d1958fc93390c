//! The JSON Schema of `relay.toml`, for editors.

use serde_json::Value;

use super::file::FileSection;

/// Returns the schema of the file. It covers names, types and words. Bounds and the checks across
/// settings apply only when the file is read.
#[must_use]
pub(crate) fn schema() -> Value {
    schemars::schema_for!(FileSection).to_value()
}

#[cfg(all(test, feature = "http", feature = "kafka", feature = "rabbitmq", feature = "sqs"))]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    /// Returns every file shown in the documentation.
    fn examples() -> Vec<String> {
        let mut examples = Vec::new();
        for page in ["configuration.md", "security.md", "verify.md"] {
            let text = std::fs::read_to_string(format!("../docs/{page}")).unwrap();
            let blocks = text.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next());
            examples.extend(blocks.filter(|block| block.contains("[[pipeline]]")).map(str::to_owned));
        }
        examples
    }

    fn problems(text: &str) -> Vec<String> {
        let file: Value = toml::from_str(text).unwrap();
        let schema = schema();
        let validator = jsonschema::validator_for(&schema).unwrap();
        validator.iter_errors(&file).map(|error| error.to_string()).collect()
    }

    #[test]
    fn the_examples_of_the_documentation_fit_the_schema() {
        let examples = examples();
        assert!(examples.len() >= 4, "{}", examples.len());
        for example in examples {
            assert_eq!(problems(&example), Vec::<String>::new(), "{example}");
        }
    }

    #[test]
    fn wrong_keys_and_types_do_not_fit_it() {
        let sound = &examples()[0];
        for (before, after) in [
            ("bootstrap_servers", "bootstrap_server"),
            ("name = \"orders\"", "name = 5"),
            ("[\"127.0.0.1:9092\"]", "\"127.0.0.1:9092\""),
            ("[pipeline.database]", "[pipeline.databases]"),
        ] {
            let broken = sound.replacen(before, after, 1);
            assert_ne!(&broken, sound, "{before}");
            assert!(!problems(&broken).is_empty(), "{broken}");
        }
    }
}
