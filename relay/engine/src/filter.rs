//! Selects the entries of the log that a relay publishes; all others count as passed. Pure.
//!
//! Several relays can share one outbox, each with its own name, cursor and filter. A filter decides
//! by the entry alone. So every process of a relay decides alike, and a successor leaves out the
//! entries that its predecessor left out.

use std::collections::BTreeMap;
use std::fmt;

use outbox_log::Entry;
use outbox_log::entries::Labels;

/// Maximum rules of a filter, and maximum patterns or headers of a rule.
const RULES_MAX: usize = 64;
/// Maximum bytes of a pattern or of a header's name or value: the same limit as for topics and
/// kinds.
const PATTERN_BYTES_MAX: usize = 255;

/// A filter. It selects the entries that one of its rules accepts, or all entries if it has no
/// rules.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    rules: Vec<Conditions>,
}

/// A rule of a filter. It accepts messages that meet all of its conditions, of which there is at
/// least one. Patterns are names in which `*` stands for any characters, or none. A pattern that
/// begins with `!` excludes. A name is accepted when no pattern excludes it and another pattern
/// matches it. If every pattern excludes, all other names are accepted.
///
/// ```
/// use relay_engine::{Filter, Rule};
///
/// let orders = Rule { topics: vec!["orders.*".into(), "!orders.audit".into()], ..Rule::default() };
/// let filter = Filter::any_of(vec![orders])?;
/// assert!(filter.can_take_topic("orders.eu") && !filter.can_take_topic("orders.audit"));
/// # Ok::<(), relay_engine::InvalidFilter>(())
/// ```
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Rule {
    /// Patterns of topics.
    pub topics: Vec<String>,
    /// Patterns of kinds (CloudEvents types).
    pub kinds: Vec<String>,
    /// Headers that a message has, with exactly these values.
    pub headers: BTreeMap<String, String>,
}

/// A validated rule.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Conditions {
    topics: Patterns,
    kinds: Patterns,
    headers: BTreeMap<String, String>,
}

/// Patterns to include and patterns to exclude.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Patterns {
    taking: Vec<String>,
    excluding: Vec<String>,
}

/// A filter that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidFilter {
    /// More than 64 rules.
    #[error(
        "{0} rules are too many; the maximum is {RULES_MAX}: use patterns with *, or a header that the \
         producer sets"
    )]
    TooMany(usize),
    /// A rule cannot be used.
    #[error("rule {index}: {problem}")]
    Rule {
        /// Its place, from 0.
        index: usize,
        /// The reason.
        #[source]
        problem: InvalidRule,
    },
}

/// A rule that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidRule {
    /// It accepts everything.
    #[error(
        "a rule without a condition matches every message: add topics, kinds or headers, or remove the rule"
    )]
    NoCondition,
    /// More than 64.
    #[error(
        "{count} {what} are too many; the maximum is {RULES_MAX}: use patterns with *, or a header that the \
         producer sets"
    )]
    TooMany {
        /// The kind of conditions of which there are too many.
        what: &'static str,
        /// Their number.
        count: usize,
    },
    /// A pattern is empty or too long.
    #[error("the pattern {pattern:?} must have 1 to {PATTERN_BYTES_MAX} bytes, not counting a leading !")]
    Pattern {
        /// The beginning of the pattern.
        pattern: String,
    },
    /// A header's name is empty, or name or value is too long.
    #[error(
        "the header {name:?} must have a name of 1 to {PATTERN_BYTES_MAX} bytes and a value of at most \
         {PATTERN_BYTES_MAX} bytes"
    )]
    Header {
        /// The prefix of its name.
        name: String,
    },
}

/// The parts of an entry that a filter needs.
pub trait Filtered {
    /// Returns its topic.
    fn topic(&self) -> &str;
    /// Returns its kind, or `None` when the kind cannot be read.
    fn kind(&self) -> Option<&str>;
    /// Returns whether its headers could be read.
    fn has_readable_headers(&self) -> bool;
    /// Returns the value of a header.
    fn header(&self, name: &str) -> Option<&str>;
}

impl Filtered for Entry {
    fn topic(&self) -> &str {
        self.topic()
    }

    fn kind(&self) -> Option<&str> {
        match &self.message {
            Ok(message) => Some(message.kind.as_str()),
            Err(invalid) => invalid.kind.as_deref(),
        }
    }

    fn has_readable_headers(&self) -> bool {
        self.message.is_ok()
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.message.as_ref().ok().and_then(|message| message.headers.get(name))
    }
}

/// An entry as the operators' commands know it.
impl Filtered for (&str, &Labels) {
    fn topic(&self) -> &str {
        self.0
    }

    fn kind(&self) -> Option<&str> {
        Some(self.1.kind.as_str())
    }

    fn has_readable_headers(&self) -> bool {
        self.1.headers.is_some()
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.1.headers.as_ref().and_then(|headers| headers.get(name)).map(String::as_str)
    }
}

impl Filter {
    /// Creates a filter that selects the entries that one of these rules accepts, or all entries if
    /// there are no rules.
    ///
    /// # Errors
    /// [`InvalidFilter`]: more than 64 rules, or a rule that cannot be used. The
    /// producer or the operator is at fault; the error appears at the start.
    pub fn any_of(rules: Vec<Rule>) -> Result<Self, InvalidFilter> {
        if rules.len() > RULES_MAX {
            return Err(InvalidFilter::TooMany(rules.len()));
        }
        let validated =
            |(index, rule)| Conditions::of(rule).map_err(|problem| InvalidFilter::Rule { index, problem });
        Ok(Self { rules: rules.into_iter().enumerate().map(validated).collect::<Result<_, _>>()? })
    }

    /// Returns whether it selects all entries.
    #[must_use]
    pub fn takes_all(&self) -> bool {
        self.rules.is_empty()
    }

    /// Returns whether it selects an entry. A part that cannot be read meets every condition on
    /// that part. So the entry is parked where an operator sees it, and is not passed silently.
    #[must_use]
    pub fn takes(&self, entry: &impl Filtered) -> bool {
        self.takes_all() || self.rules.iter().any(|rule| rule.takes(entry))
    }

    /// Returns whether it can select messages to this topic. It may still exclude some by their
    /// kind or headers.
    #[must_use]
    pub fn can_take_topic(&self, topic: &str) -> bool {
        self.takes_all() || self.rules.iter().any(|rule| rule.topics.take(topic))
    }
}

impl Conditions {
    fn of(rule: Rule) -> Result<Self, InvalidRule> {
        let Rule { topics, kinds, headers } = rule;
        let counts = [topics.len(), kinds.len(), headers.len()];
        if counts == [0; 3] {
            return Err(InvalidRule::NoCondition);
        }
        let what = ["patterns of topics", "patterns of kinds", "headers"];
        if let Some((what, count)) = what.into_iter().zip(counts).find(|(_, count)| *count > RULES_MAX) {
            return Err(InvalidRule::TooMany { what, count });
        }
        let is_invalid = |(name, value): &(&String, &String)| {
            name.is_empty() || name.len().max(value.len()) > PATTERN_BYTES_MAX
        };
        if let Some((name, _)) = headers.iter().find(is_invalid) {
            return Err(InvalidRule::Header { name: beginning(name) });
        }
        Ok(Self { topics: Patterns::of(&topics)?, kinds: Patterns::of(&kinds)?, headers })
    }

    fn takes(&self, entry: &impl Filtered) -> bool {
        let has = |(name, value): (&String, &String)| entry.header(name) == Some(value);
        self.topics.take(entry.topic())
            && entry.kind().is_none_or(|kind| self.kinds.take(kind))
            && (!entry.has_readable_headers() || self.headers.iter().all(has))
    }
}

impl Patterns {
    fn of(patterns: &[String]) -> Result<Self, InvalidRule> {
        let mut found = Self::default();
        for pattern in patterns {
            let (to, text) = match pattern.strip_prefix('!') {
                Some(text) => (&mut found.excluding, text),
                None => (&mut found.taking, pattern.as_str()),
            };
            if text.is_empty() || text.len() > PATTERN_BYTES_MAX {
                return Err(InvalidRule::Pattern { pattern: beginning(pattern) });
            }
            to.push(text.to_owned());
        }
        Ok(found)
    }

    fn take(&self, text: &str) -> bool {
        let is_any =
            |patterns: &[String]| patterns.iter().any(|pattern| matches(pattern.as_bytes(), text.as_bytes()));
        !is_any(&self.excluding) && (self.taking.is_empty() || is_any(&self.taking))
    }

    fn words(&self) -> impl Iterator<Item = String> {
        self.taking.iter().cloned().chain(self.excluding.iter().map(|pattern| format!("!{pattern}")))
    }
}

impl fmt::Display for Filter {
    /// Writes the filter for people: `topic orders.*, !orders.audit and kind order.placed, or
    /// header region=eu`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.takes_all() {
            return f.write_str("everything");
        }
        let rules: Vec<String> = self.rules.iter().map(ToString::to_string).collect();
        f.write_str(&rules.join(", or "))
    }
}

impl fmt::Display for Conditions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut conditions = Vec::new();
        for (name, patterns) in [("topic", &self.topics), ("kind", &self.kinds)] {
            let words: Vec<String> = patterns.words().collect();
            if !words.is_empty() {
                conditions.push(format!("{name} {}", words.join(", ")));
            }
        }
        conditions.extend(self.headers.iter().map(|(name, value)| format!("header {name}={value}")));
        f.write_str(&conditions.join(" and "))
    }
}

fn beginning(text: &str) -> String {
    text.chars().take(40).collect()
}

/// Returns whether a pattern with `*` matches a whole text. It backtracks only to the last `*`, so
/// its steps number at most the product of both lengths.
fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut at, mut place) = (0, 0);
    // The position after the last star, and the end of the text that the star stands for.
    let mut star = None;
    while place < text.len() {
        match pattern.get(at) {
            Some(b'*') => {
                at += 1;
                star = Some((at, place));
            }
            Some(byte) if *byte == text[place] => {
                at += 1;
                place += 1;
            }
            _ => match star {
                Some((behind, end)) => {
                    at = behind;
                    place = end + 1;
                    star = Some((behind, place));
                }
                None => return false,
            },
        }
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fake(&'static str, Option<&'static str>, &'static [(&'static str, &'static str)]);

    impl Filtered for Fake {
        fn topic(&self) -> &str {
            self.0
        }

        fn kind(&self) -> Option<&str> {
            self.1
        }

        fn has_readable_headers(&self) -> bool {
            self.1.is_some()
        }

        fn header(&self, name: &str) -> Option<&str> {
            self.2.iter().find(|(own, _)| *own == name).map(|(_, value)| *value)
        }
    }

    fn texts(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    fn rule(topics: &[&str], kinds: &[&str], headers: &[(&str, &str)]) -> Rule {
        let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Rule { topics: texts(topics), kinds: texts(kinds), headers: headers.collect() }
    }

    /// The kind of a row that is too large is known; its headers are not.
    #[test]
    fn a_row_that_was_not_read_belongs_to_the_relay_of_its_kind() {
        let entry = |kind: Option<&str>| Entry {
            id: outbox_log::EntryId(1),
            message: Err(outbox_log::InvalidEntry {
                message_id: String::new(),
                topic: String::from("orders"),
                key: None,
                kind: kind.map(str::to_owned),
                problem: String::from("too large"),
            }),
            deliver_in: None,
        };
        let small = Filter::any_of(vec![rule(&["orders"], &["small"], &[("region", "eu")])]).unwrap();
        assert!(!small.takes(&entry(Some("big"))), "the relay of its kind parks it");
        assert!(small.takes(&entry(Some("small"))), "its headers may be these");
        assert!(small.takes(&entry(None)), "nobody else would park it");
    }

    #[test]
    fn a_star_stands_for_any_characters() {
        for (pattern, text, expected) in [
            ("orders", "orders", true),
            ("orders", "orders.eu", false),
            ("orders.*", "orders.eu", true),
            ("orders.*", "orders", false),
            ("orders*", "orders", true),
            ("*.eu", "orders.eu", true),
            ("*.eu", "orders.eu.west", false),
            ("*o*o*", "foo", true),
            ("*o*o*o*", "foo", false),
            ("*ab", "aab", true),
            ("a*b*c", "a-b-b-c", true),
            ("*", "", true),
            ("", "x", false),
            ("ö*", "öl", true),
        ] {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn a_pattern_that_goes_back_ends_soon() {
        let (pattern, text) = ("*a".repeat(120), "a".repeat(100) + "b");
        assert!(!matches(pattern.as_bytes(), text.as_bytes()));
    }

    #[test]
    fn conditions_of_a_rule_are_joined_by_and_rules_by_or() {
        let filter = Filter::any_of(vec![
            rule(&["orders.*", "!orders.audit"], &["order.placed", "order.paid"], &[]),
            rule(&["!internal.*"], &[], &[("region", "eu"), ("tier", "gold")]),
        ])
        .unwrap();
        for (entry, expected) in [
            (Fake("orders.eu", Some("order.paid"), &[]), true),
            (Fake("orders.eu", Some("order.sent"), &[]), false),
            (Fake("orders.audit", Some("order.paid"), &[]), false),
            (Fake("stock", Some("x"), &[("region", "eu"), ("tier", "gold")]), true),
            (Fake("stock", Some("x"), &[("region", "eu")]), false),
            (Fake("stock", Some("x"), &[("region", "us"), ("tier", "gold")]), false),
            (Fake("internal.x", Some("x"), &[("region", "eu"), ("tier", "gold")]), false),
            // An entry that cannot be read meets every condition on its content.
            (Fake("orders.eu", None, &[]), true),
            (Fake("internal.x", None, &[]), false),
        ] {
            assert_eq!(filter.takes(&entry), expected, "{} {:?} {:?}", entry.0, entry.1, entry.2);
        }
        assert!(filter.can_take_topic("orders.eu") && !filter.can_take_topic("internal.x"));
        assert_eq!(
            filter.to_string(),
            "topic orders.*, !orders.audit and kind order.placed, order.paid, or topic !internal.* and header \
             region=eu and header tier=gold"
        );
    }

    #[test]
    fn without_rules_everything_is_taken() {
        let filter = Filter::any_of(Vec::new()).unwrap();
        assert!(filter.takes_all() && filter.takes(&Fake("x", None, &[])) && filter.can_take_topic("x"));
        assert_eq!(filter.to_string(), "everything");
    }

    #[test]
    fn rules_that_cannot_be_meant_are_refused() {
        let problem_of = |rule: Rule| match Filter::any_of(vec![
            Rule { topics: texts(&["x"]), ..Rule::default() },
            rule,
        ]) {
            Err(InvalidFilter::Rule { index: 1, problem }) => problem,
            other => panic!("{other:?}"),
        };
        let long = "x".repeat(256);
        for topics in [[""], ["!"], [long.as_str()]] {
            let problem = problem_of(rule(&topics, &[], &[]));
            assert!(matches!(problem, InvalidRule::Pattern { .. }), "{problem}");
        }
        assert!(matches!(problem_of(rule(&[], &[], &[("", "eu")])), InvalidRule::Header { .. }));
        let many = rule(&["x"; RULES_MAX + 1], &[], &[]);
        assert!(matches!(problem_of(many), InvalidRule::TooMany { count: 65, .. }));
        assert_eq!(problem_of(Rule::default()), InvalidRule::NoCondition);
        let rules = vec![rule(&["x"], &[], &[]); RULES_MAX + 1];
        assert_eq!(Filter::any_of(rules), Err(InvalidFilter::TooMany(65)));
    }
}
