//! Properties that must hold for every sequence of bytes from outside. libFuzzer runs them
//! (`cargo xtask fuzz`), and a plain test runs them over the stored seeds.
//!
//! | module | targets | input |
//! |---|---|---|
//! | [`wire`] | `kafka`, `rabbitmq`, `sqs`, `http`, `answers` | a record of a broker, or an answer of an HTTP endpoint, as [`record`] reads it |
//! | [`names`] | `names` | a text as an id, a trace context, a topic, a key, a header, … |
//! | [`storage`] | `marks`, `rows` | values that the relay reads back from the database, and rows written by plain SQL |
//! | [`requests`] | `keys`, `fingerprints`, `responses` | headers and bodies of requests with an idempotency key, stored responses |
//! | [`replies`] | `replies` | key and payload of a reply to a saga |
//! | [`operator`] | `configuration`, `urls`, `edits` | `relay.toml` with variables, URLs with a password, arguments |
//!
//! Each target demands more than "no panic". An accepted input is the same after it was written and
//! read again. A refusal states its reason in a bounded text. No text contains a secret.
//!
//! `corpus/<target>/` holds the seeds; an input that once failed belongs there.

pub mod names;
pub mod operator;
pub mod record;
pub mod replies;
pub mod requests;
pub mod storage;
pub mod wire;

/// Maximum length of the text of a problem, in bytes. It goes into a log line or a table column, so
/// it must not repeat the input.
pub const PROBLEM_BYTES_MAX: usize = 1_000;

/// Demands that a refusal has a text, and that it is bounded.
fn bounded(problem: &str) {
    assert!(!problem.is_empty(), "a refusal without a reason");
    assert!(problem.len() <= PROBLEM_BYTES_MAX, "{} bytes of reason: {problem}", problem.len());
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    type Target = fn(&[u8]);

    /// The targets by name.
    const TARGETS: [(&str, Target); 15] = [
        ("kafka", crate::wire::kafka),
        ("rabbitmq", crate::wire::rabbitmq),
        ("sqs", crate::wire::sqs),
        ("http", crate::wire::http),
        ("answers", crate::wire::answers),
        ("names", crate::names::names),
        ("marks", crate::storage::marks),
        ("rows", crate::storage::rows),
        ("keys", crate::requests::keys),
        ("fingerprints", crate::requests::fingerprints),
        ("responses", crate::requests::responses),
        ("replies", crate::replies::replies),
        ("configuration", crate::operator::configuration),
        ("urls", crate::operator::urls),
        ("edits", crate::operator::edits),
    ];

    #[test]
    fn every_seed_passes_its_target() {
        for (name, target) in TARGETS {
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
            let mut seeds = 0;
            for file in fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
            {
                let path = file.expect("a folder's entry").path();
                println!("{}", path.display());
                target(&fs::read(&path).expect("a seed"));
                seeds += 1;
            }
            assert!(seeds > 0, "{name} has no seeds");
        }
    }

    #[test]
    fn every_target_has_a_binary() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz_targets");
        let mut found: Vec<String> = fs::read_dir(folder)
            .expect("the folder of targets")
            .map(|file| {
                file.expect("a file").path().file_stem().expect("a name").to_string_lossy().into_owned()
            })
            .collect();
        found.sort();
        let mut expected = TARGETS.map(|(name, _)| name);
        expected.sort_unstable();
        assert_eq!(found, expected);
    }
}
