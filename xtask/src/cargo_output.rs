//! Reads what `cargo test` prints: which binary runs, and its result lines.

/// The counts of one test binary or one crate's doc tests.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Suite {
    pub(crate) name: String,
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) ignored: u64,
    pub(crate) seconds: f64,
    /// False until a result line was seen; false at the end means that the binary crashed.
    pub(crate) reported: bool,
    /// The report on the failed tests, as the binary printed it before its result line.
    pub(crate) failures: Vec<String>,
}

/// All suites of a run, in order.
#[derive(Debug, Default)]
pub(crate) struct Suites {
    suites: Vec<Suite>,
    /// The lines since `failures:`.
    report: Option<Vec<String>>,
}

impl Suites {
    /// Reads one line of output, with or without colours.
    pub(crate) fn read(&mut self, line: &str) {
        let whole = without_colours(line);
        let line = whole.trim();
        if let Some(name) = suite_name(line) {
            self.suites.push(Suite { name, ..Suite::default() });
        } else if let Some(result) = parse_result(whole.trim_end()) {
            // An indented line is quoted from another program. One crate's doc tests may print
            // several results: merged ones, and those compiled alone.
            let suite = match self.suites.last_mut() {
                Some(suite) => suite,
                None => self.suites.push_mut(Suite { name: "unknown".to_owned(), ..Suite::default() }),
            };
            suite.failures.extend(self.report.take().unwrap_or_default());
            suite.passed += result.passed;
            suite.failed += result.failed;
            suite.ignored += result.ignored;
            suite.seconds += result.seconds;
            suite.reported = true;
        } else if let Some(report) = &mut self.report {
            report.push(whole.trim_end().to_owned());
        } else if line == "failures:" {
            self.report = Some(Vec::new());
        }
    }

    /// Ends a program that was not run by cargo. A program that failed without reporting it, or
    /// that reported nothing, has crashed and counts as one failure.
    pub(crate) fn end_of_program(&mut self, succeeded: bool) {
        self.report = None;
        if let Some(suite) = self.suites.last_mut()
            && (!suite.reported || (!succeeded && suite.failed == 0))
        {
            suite.failed += 1;
            suite.failures.push("it ended before it reported a result".to_owned());
        }
    }

    /// Ends the run. If cargo failed, a suite without a result has crashed and counts as one
    /// failure. A failed run never shows zero failures.
    pub(crate) fn finish(mut self, cargo_succeeded: bool) -> Vec<Suite> {
        if cargo_succeeded {
            return self.suites;
        }
        for suite in self.suites.iter_mut().filter(|suite| !suite.reported) {
            suite.failed += 1;
        }
        if self.suites.iter().all(|suite| suite.failed == 0) {
            self.suites.push(Suite {
                name: "cargo test (see above)".to_owned(),
                failed: 1,
                ..Suite::default()
            });
        }
        self.suites
    }
}

/// `Running unittests src/lib.rs (target/debug/deps/message-0a1b2c)` or `Doc-tests message`.
fn suite_name(line: &str) -> Option<String> {
    if let Some(name) = line.strip_prefix("Doc-tests ") {
        return Some(format!("{name} (doc tests)"));
    }
    let (source, binary) = line.strip_prefix("Running ")?.strip_suffix(')')?.split_once(" (")?;
    let file = binary.rsplit('/').next()?;
    let name = file.rsplit_once('-').map_or(file, |(name, _hash)| name);
    Some(format!("{name} ({})", source.trim_start_matches("unittests ")))
}

/// `test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.12s`
fn parse_result(line: &str) -> Option<Suite> {
    let (verdict, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
    if !matches!(verdict, "ok" | "FAILED") {
        return None;
    }
    let mut suite = Suite { reported: true, ..Suite::default() };
    for part in counts.split("; ") {
        if let Some(seconds) = part.strip_prefix("finished in ") {
            suite.seconds = seconds.strip_suffix('s')?.parse().ok()?;
            continue;
        }
        let (number, what) = part.split_once(' ')?;
        let number = number.parse().ok()?;
        match what {
            "passed" => suite.passed = number,
            "failed" => suite.failed = number,
            "ignored" => suite.ignored = number,
            _ => {}
        }
    }
    Some(suite)
}

/// Removes ANSI colour sequences (`ESC [ … m`).
fn without_colours(line: &str) -> String {
    let mut pieces = line.split('\u{1b}');
    let first = pieces.next().unwrap_or_default().to_owned();
    pieces.fold(first, |text, piece| text + piece.split_once('m').map_or("", |(_, rest)| rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(lines: &[&str]) -> Suites {
        let mut suites = Suites::default();
        lines.iter().for_each(|line| suites.read(line));
        suites
    }

    #[test]
    fn a_suite_gets_the_counts_of_its_result_line() {
        let suites = read(&[
            "     Running unittests src/lib.rs (target/debug/deps/message-0a1b2c3d)",
            "running 4 tests",
            "test ids::tests::order ... ok",
            "test result: FAILED. 2 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 1.50s",
            "     Running tests/conformance.rs (/cache/debug/deps/conformance-99ff)",
            "test result: ok. 7 passed; 0 failed; 2 ignored; 0 measured; 3 filtered out; finished in 0.25s",
        ])
        .finish(false);
        let shown: Vec<_> =
            suites.iter().map(|s| (s.name.as_str(), s.passed, s.failed, s.ignored, s.seconds)).collect();
        assert_eq!(
            shown,
            [("message (src/lib.rs)", 2, 1, 1, 1.5), ("conformance (tests/conformance.rs)", 7, 0, 2, 0.25)]
        );
    }

    #[test]
    fn the_report_on_failed_tests_is_kept_without_its_result_line() {
        let suites = read(&[
            "     Running tests/a.rs (target/debug/deps/a-1)",
            "test one ... FAILED",
            "failures:",
            "---- one ----",
            "  left: 1",
            "failures:",
            "    one",
            "test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s",
            "     Running tests/b.rs (target/debug/deps/b-1)",
            "test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s",
        ])
        .finish(false);
        assert_eq!(suites[0].failures, ["---- one ----", "  left: 1", "failures:", "    one"]);
        assert!(suites[1].failures.is_empty());
    }

    #[test]
    fn a_result_that_a_test_quotes_does_not_count() {
        let suites = read(&[
            "     Running tests/a.rs (target/debug/deps/a-1)",
            "  test result: FAILED. 7 passed; 3 failed; 9 ignored; 0 measured; 0 filtered out; finished in 1s",
            "test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 2s",
        ])
        .finish(true);
        assert_eq!((suites[0].passed, suites[0].failed, suites[0].ignored), (1, 0, 0));
    }

    #[test]
    fn doc_tests_may_report_twice() {
        let suites = read(&[
            "   Doc-tests outbox",
            "test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.10s",
            "test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.40s",
        ])
        .finish(true);
        assert_eq!(suites.len(), 1);
        assert_eq!(
            (suites[0].name.as_str(), suites[0].passed, suites[0].ignored),
            ("outbox (doc tests)", 5, 1)
        );
    }

    #[test]
    fn a_crashed_binary_is_a_failure() {
        let lines = [
            "     Running unittests src/lib.rs (target/debug/deps/inbox-1)",
            "running 4 tests",
            "error: test failed, to rerun pass `-p inbox --lib`",
            "     Running unittests src/lib.rs (target/debug/deps/relay-1)",
            "test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s",
        ];
        let failed: Vec<_> = read(&lines).finish(false).iter().map(|suite| suite.failed).collect();
        assert_eq!(failed, [1, 0]);
    }

    #[test]
    fn a_program_that_reports_nothing_has_failed() {
        let mut suites = read(&["     Running unittests src/lib.rs (target/debug/deps/inbox-1)"]);
        suites.end_of_program(true);
        suites.read("     Running unittests src/lib.rs (target/debug/deps/relay-1)");
        suites.read(
            "test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0s",
        );
        suites.end_of_program(false);
        let failed: Vec<_> = suites.finish(true).iter().map(|suite| (suite.passed, suite.failed)).collect();
        assert_eq!(failed, [(0, 1), (1, 1)]);
    }

    #[test]
    fn a_failed_run_never_shows_zero_failures() {
        let suites = read(&[
            "test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s",
        ]);
        let failed: u64 = suites.finish(false).iter().map(|suite| suite.failed).sum();
        assert_eq!(failed, 1);
    }

    #[test]
    fn colours_do_not_hide_a_result() {
        let line = "test result: \u{1b}[32mok\u{1b}(B\u{1b}[m. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s";
        assert_eq!(parse_result(&without_colours(line)).map(|suite| suite.passed), Some(3));
        let line =
            "\u{1b}[1m\u{1b}[92m     Running\u{1b}[0m unittests src/lib.rs (target/debug/deps/inbox-1)";
        assert_eq!(suite_name(without_colours(line).trim()), Some("inbox (src/lib.rs)".to_owned()));
    }

    #[test]
    fn other_lines_are_no_results() {
        for line in [
            "",
            "test result: maybe. 1 passed",
            "test result: ok. x passed; 0 failed",
            "Running out (of ideas",
        ] {
            assert_eq!(parse_result(line), None, "{line}");
            assert_eq!(suite_name(line), None, "{line}");
        }
    }
}
