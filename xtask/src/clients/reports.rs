//! Reads which tests passed from what the test programs of each language print.

use std::{fs, path::Path};

/// A test that ran.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Trial {
    /// The client, a slash, and the case.
    pub(super) name: String,
    /// Why it failed. The output above has the details.
    pub(super) failure: Option<String>,
}

fn trial(client: &str, case: &str, passed: bool) -> Trial {
    let failure = (!passed).then(|| "it failed; its output is above".to_owned());
    Trial { name: format!("{client}/{case}"), failure }
}

/// Reads `test_clients.py::test_CASE[CLIENT] PASSED  [ 6%]`.
pub(super) fn of_pytest(text: &str) -> Vec<Trial> {
    let read = |line: &str| {
        let (case, rest) = line.split_once("::test_")?.1.split_once('[')?;
        let (client, verdict) = rest.split_once("] ")?;
        Some(trial(client, case, verdict.starts_with("PASSED")))
    };
    text.lines().filter(|line| !line.starts_with(['F', 'E'])).filter_map(read).collect()
}

/// Reads `ok 1 - CASE`, and `not ok 2 - CASE`.
pub(super) fn of_tap(client: &str, text: &str) -> Vec<Trial> {
    let read = |line: &str| {
        let (verdict, case) = line.split_once(" - ")?;
        let is_trial = verdict.trim_start_matches("not ").starts_with("ok ");
        is_trial.then(|| trial(client, case, verdict.starts_with("ok ")))
    };
    text.lines().filter_map(read).collect()
}

/// Reads `--- PASS: TestACase (0.32s)`.
pub(super) fn of_go(client: &str, text: &str) -> Vec<Trial> {
    let read = |line: &str| {
        let (verdict, rest) = line.strip_prefix("--- ")?.split_once(": Test")?;
        Some(trial(client, &snake(rest.split(' ').next()?), verdict == "PASS"))
    };
    text.lines().filter_map(read).collect()
}

/// Reads the reports of Maven: `<testcase name="aCase" classname="billing.JdbcTest" …>`, with an
/// element `failure` or `error` in it.
pub(super) fn of_surefire(folder: &Path) -> Result<Vec<Trial>, String> {
    let failed = |error: std::io::Error| format!("cannot read {}: {error}", folder.display());
    let mut trials = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_some_and(|extension| extension == "xml") {
            trials.extend(of_report(&fs::read_to_string(&path).map_err(failed)?));
        }
    }
    Ok(trials)
}

fn of_report(xml: &str) -> Vec<Trial> {
    let read = |case: &str| {
        let value = |name: &str| case.split_once(&format!("{name}=\""))?.1.split('"').next();
        let class = value("classname")?.strip_prefix("billing.")?.strip_suffix("Test")?;
        let passed = !["<failure", "<error", "<skipped"].iter().any(|element| case.contains(element));
        Some(trial(&class.to_ascii_lowercase(), &snake(value("name")?), passed))
    };
    xml.split("<testcase ").skip(1).filter_map(read).collect()
}

/// Reads `ok NAME`, and `not ok NAME: why`.
pub(super) fn of_pipeline(text: &str) -> Vec<Trial> {
    let read = |line: &str| {
        if let Some(name) = line.strip_prefix("ok pipeline/") {
            return Some(Trial { name: format!("pipeline/{name}"), failure: None });
        }
        let (name, why) = line.strip_prefix("not ok ")?.split_once(": ")?;
        Some(Trial { name: name.to_owned(), failure: Some(why.to_owned()) })
    };
    text.lines().filter_map(read).collect()
}

/// Returns a name in lower case with underscores.
fn snake(camel: &str) -> String {
    let mut name = String::new();
    for c in camel.chars() {
        if c.is_ascii_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(c.to_ascii_lowercase());
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    fn brief(trials: &[Trial]) -> Vec<(&str, bool)> {
        trials.iter().map(|trial| (trial.name.as_str(), trial.failure.is_none())).collect()
    }

    #[test]
    fn each_language_reports_its_tests() {
        let pytest = "test_clients.py::test_a_case[python] PASSED   [  6%]\n\
                      test_clients.py::test_a_case[sqlalchemy] FAILED   [ 12%]\n\
                      FAILED test_clients.py::test_a_case[sqlalchemy] - boom";
        assert_eq!(brief(&of_pytest(pytest)), [("python/a_case", true), ("sqlalchemy/a_case", false)]);
        let tap = "TAP version 13\n# Subtest: a_case\nok 1 - a_case\nnot ok 2 - b_case\n1..2";
        assert_eq!(
            brief(&of_tap("typescript", tap)),
            [("typescript/a_case", true), ("typescript/b_case", false)]
        );
        let go = "=== RUN   TestACase\n--- PASS: TestACase (0.32s)\n--- FAIL: TestBCase (0.01s)\nFAIL";
        assert_eq!(brief(&of_go("go", go)), [("go/a_case", true), ("go/b_case", false)]);
        let xml = r#"<testsuite><testcase name="aCase" classname="billing.JdbcTest" time="1"/>
            <testcase name="bCase" classname="billing.SpringTest" time="1"><failure message="x"/></testcase>"#;
        assert_eq!(brief(&of_report(xml)), [("jdbc/a_case", true), ("spring/b_case", false)]);
        let pipeline = "$ relay verify\nok pipeline/go/a\nnot ok pipeline/jdbc/b: 3 twice";
        assert_eq!(brief(&of_pipeline(pipeline)), [("pipeline/go/a", true), ("pipeline/jdbc/b", false)]);
    }

    #[test]
    fn names_of_go_and_java_become_those_of_the_others() {
        assert_eq!(snake("ARedeliveryHasOneEffect"), "a_redelivery_has_one_effect");
        assert_eq!(snake("aRedeliveryHasOneEffect"), "a_redelivery_has_one_effect");
    }
}
