//! Groups errors that differ only in their numbers. Pure.
//!
//! The errors of a thousand dead messages are often one error with a thousand ids. Its signature
//! is the text without them: `row 17 of 5f2a… is missing` and `row 4 of 90c1… is missing` are both
//! `row # of # is missing`.

use std::collections::BTreeMap;

use crate::text::{cut_in_the_middle, with_short_names};

/// Maximum number of characters of a signature.
pub const SIGNATURE_CHARS_MAX: usize = 300;
/// Number of characters of an error that form its signature. The databases group errors by these,
/// so a group and its filter have the same messages.
pub const ERROR_CHARS_MAX: usize = 300;
/// A run of hexadecimal digits of at least this length, with a digit among them, is an id.
const HEX_CHARS_MIN: usize = 8;
/// Maximum number of characters of an error that is shown whole, with its names shortened.
const SHOWN_CHARS_MAX: usize = 600;
/// Characters that are left at the beginning and at the end of a longer one: the end has the
/// remedy.
const SHOWN_BEGIN_CHARS: usize = 350;
const SHOWN_END_CHARS: usize = 200;
/// The lengths of the parts of a UUID.
const UUID_PARTS: [usize; 5] = [8, 4, 4, 4, 12];

/// The error of a group of messages behind which most messages wait; of several, and where nothing
/// waits behind any, the most frequent one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cause {
    /// The error itself if all of them are the same, otherwise their [`signature`].
    pub text: String,
    /// One of these errors, with its numbers: the limit and the size that an operator needs.
    pub example: String,
    /// Whether the end of the text is missing.
    pub is_cut: bool,
    /// Number of messages with it.
    pub count: u64,
    /// Number of held messages that wait behind these; 0 also where that was not asked, because
    /// all messages have this error.
    pub behind: u64,
    /// Whether both numbers may be larger: only a sample was read.
    pub is_at_least: bool,
    /// Number of other signatures among the messages.
    pub others: usize,
}

impl Cause {
    /// Returns the most frequent error of counted errors; `None` without any. `is_sample` marks
    /// counts that are lower bounds.
    #[must_use]
    pub fn of(errors: impl IntoIterator<Item = (String, u64)>, is_sample: bool) -> Option<Self> {
        Self::before(errors, &BTreeMap::new(), is_sample)
    }

    /// Returns the error of counted errors behind which most messages wait, by the number behind
    /// each [`signature`], and of several the most frequent one; `None` without any. `is_sample`
    /// marks counts that are lower bounds.
    #[must_use]
    pub(crate) fn before(
        errors: impl IntoIterator<Item = (String, u64)>,
        behind: &BTreeMap<String, u64>,
        is_sample: bool,
    ) -> Option<Self> {
        let waiting = |signature: &String| behind.get(signature).copied().unwrap_or_default();
        let mut groups: BTreeMap<String, Group> = BTreeMap::new();
        for (error, count) in errors {
            let group = groups.entry(signature(&error)).or_insert_with(|| Group::of(&error));
            group.count += count;
            group.is_one &= group.example == error;
            // The first of them, so that the answer does not change from call to call.
            group.example = group.example.as_str().min(&error).to_owned();
        }
        let others = groups.len().saturating_sub(1);
        // The first of equal ones, so that the answer does not change from call to call.
        let rank = |(signature, group): &(String, Group)| (waiting(signature), group.count);
        let (signature, group) = groups.into_iter().rev().max_by_key(rank)?;
        let (count, is_cut, example) = (group.count, group.is_cut, group.example);
        let behind = waiting(&signature);
        let text = if group.is_one { example.clone() } else { signature };
        Some(Self { text, example, is_cut, count, behind, is_at_least: is_sample, others })
    }

    /// Replaces the beginning of the error by the whole one: its end has the reason and the remedy.
    /// `whole` has the same [`signature`]. The signature in [`Cause::text`] stays as it is.
    #[must_use]
    pub(crate) fn with_whole(self, whole: &str) -> Self {
        let is_one = self.text == self.example;
        let text = if is_one { whole.to_owned() } else { self.text };
        Self { text, example: whole.to_owned(), is_cut: false, ..self }
    }

    /// Returns the text for people, with a mark if its end is missing. Names of more than 60
    /// characters are cut in their middle, and so is a text that is very long nevertheless.
    #[must_use]
    pub fn shown(&self) -> String {
        self.marked(&self.text)
    }

    /// Returns one of the errors for people, in the same form.
    #[must_use]
    pub fn shown_example(&self) -> String {
        self.marked(&self.example)
    }

    fn marked(&self, text: &str) -> String {
        let text = with_short_names(text);
        let text = cut_in_the_middle(&text, SHOWN_CHARS_MAX, SHOWN_BEGIN_CHARS, SHOWN_END_CHARS);
        format!("{text}{}", if self.is_cut { "…" } else { "" })
    }
}

/// Errors with the same signature.
struct Group {
    count: u64,
    example: String,
    /// Whether all of them are the same.
    is_one: bool,
    is_cut: bool,
}

impl Group {
    fn of(error: &str) -> Self {
        let is_cut = error.chars().count() >= ERROR_CHARS_MAX;
        Self { count: 0, example: error.to_owned(), is_one: true, is_cut }
    }
}

/// Returns the beginning of an error without its numbers and ids: UUIDs, long hexadecimal runs and
/// digits become `#`, white space becomes one space. At most [`SIGNATURE_CHARS_MAX`] characters, of
/// the first [`ERROR_CHARS_MAX`] of the error. The signature of a signature is the same.
#[must_use]
pub fn signature(error: &str) -> String {
    let error = whole_words(error);
    let mut text = String::new();
    for word in error.split_whitespace() {
        if !text.is_empty() {
            text.push(' ');
        }
        add_word(&mut text, word);
        // Each character of a word may become none, so the bound is checked on the result.
        if text.len() > 4 * SIGNATURE_CHARS_MAX {
            break;
        }
    }
    match text.char_indices().nth(SIGNATURE_CHARS_MAX) {
        Some((end, _)) => text[..end].trim_end_matches([' ', ',', ';', ':']).to_owned(),
        None => text,
    }
}

/// Returns the first [`ERROR_CHARS_MAX`] characters of an error. If there may be more, it leaves
/// out the last word, unless it is the only one: a part of an id is not recognised as an id, and
/// each message would have a cause of its own.
fn whole_words(error: &str) -> &str {
    let Some((last, char)) = error.char_indices().nth(ERROR_CHARS_MAX - 1) else { return error };
    let error = &error[..last + char.len_utf8()];
    let end = error.trim_end().rfind(char::is_whitespace).unwrap_or(error.len());
    if error[..end].trim().is_empty() { error } else { &error[..end] }
}

fn add_word(text: &mut String, word: &str) {
    let mut rest = word;
    while let Some(first) = rest.chars().next() {
        if !first.is_ascii_alphanumeric() {
            text.push(first);
            rest = &rest[first.len_utf8()..];
            continue;
        }
        let run = uuid_length(rest).unwrap_or_else(|| run_length(rest));
        let (taken, others) = rest.split_at(run);
        if taken.contains('-') || is_hex_id(taken) {
            add_mark(text);
        } else {
            add_without_digits(text, taken);
        }
        rest = others;
    }
}

/// Returns the length of the ASCII letters and digits at the beginning.
fn run_length(text: &str) -> usize {
    text.bytes().take_while(u8::is_ascii_alphanumeric).count()
}

/// Returns the length of the UUID at the beginning, if there is one.
fn uuid_length(text: &str) -> Option<usize> {
    let mut parts = text.splitn(UUID_PARTS.len(), '-');
    for (index, length) in UUID_PARTS.into_iter().enumerate() {
        let part = parts.next()?;
        let run = run_length(part);
        let is_whole = run == part.len() || index == UUID_PARTS.len() - 1;
        if run != length || !is_whole || !part.bytes().take(run).all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
    }
    Some(UUID_PARTS.iter().sum::<usize>() + UUID_PARTS.len() - 1)
}

fn is_hex_id(run: &str) -> bool {
    run.len() >= HEX_CHARS_MIN
        && run.bytes().all(|byte| byte.is_ascii_hexdigit())
        && run.bytes().any(|byte| byte.is_ascii_digit())
}

fn add_without_digits(text: &mut String, run: &str) {
    for char in run.chars() {
        if char.is_ascii_digit() { add_mark(text) } else { text.push(char) }
    }
}

/// Adds a mark for a number, once for all its digits and for numbers that touch.
fn add_mark(text: &mut String) {
    if !text.ends_with('#') {
        text.push('#');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_that_differ_in_numbers_are_one() {
        for (error, shown) in [
            (
                "larger than RabbitMQ takes: 3596 bytes, at most 2048",
                "larger than RabbitMQ takes: # bytes, at most #",
            ),
            (
                "duplicate key value violates unique constraint \"a_pkey\" Key (id)=(01a21987-9bca-7af8-8184-ba681445d351)",
                "duplicate key value violates unique constraint \"a_pkey\" Key (id)=(#)",
            ),
            ("NO_ROUTE (312) at 10.0.0.7:5672", "NO_ROUTE (#) at #.#.#.#:#"),
            ("Kafka: UnknownTopicOrPartition orders-17", "Kafka: UnknownTopicOrPartition orders-#"),
            ("object 5f2a90c1bb is gone", "object # is gone"),
            ("defaced facade12", "defaced #"),
            ("deadbeef stays, v2 too", "deadbeef stays, v# too"),
            ("a \n  b\tc", "a b c"),
            ("ключ 17 鍵", "ключ # 鍵"),
            ("not-a-uuid 1234-5678", "not-a-uuid #-#"),
            ("", ""),
        ] {
            assert_eq!(signature(error), shown);
            assert_eq!(signature(shown), shown);
        }
    }

    #[test]
    fn a_hostile_error_stays_short_and_whole_characters_stay_whole() {
        for error in ["ä".repeat(100_000), "1".repeat(100_000), "1 ".repeat(100_000), "a-".repeat(100_000)] {
            assert!(signature(&error).chars().count() <= SIGNATURE_CHARS_MAX);
        }
        assert_eq!(signature(&"12345678-".repeat(3)), "#-#-#-");
        let cut = signature(&format!("{} b", "a".repeat(SIGNATURE_CHARS_MAX)));
        assert_eq!((cut.len(), signature(&cut)), (SIGNATURE_CHARS_MAX, cut.clone()));
        // The databases group errors by their first characters.
        let long = format!("{} is gone", "12 ".repeat(ERROR_CHARS_MAX));
        let first: String = long.chars().take(ERROR_CHARS_MAX).collect();
        assert_eq!(signature(&long), signature(&first));
    }

    /// Goal: an id at the place where the databases cut an error makes no causes of its own.
    /// Oracle: the signatures of one template with two ids, whole and cut, for every place of the
    /// id.
    #[test]
    fn an_id_that_is_cut_is_no_part_of_a_signature() {
        let ids = ["0198a0de-7c1f-7abc-8184-ba681445d351", "f198b1ea-1d2e-7fed-9295-cb792556e462"];
        for length in 200..ERROR_CHARS_MAX + 10 {
            let begins = "a word ".repeat(60);
            let begin: String = begins.chars().take(length).collect();
            let errors = ids.map(|id| format!("{begin} Key (order_id)=({id}) is not present"));
            let cut = errors.clone().map(|error| error.chars().take(ERROR_CHARS_MAX).collect::<String>());
            let one = signature(&errors[0]);
            assert!(errors.iter().chain(&cut).all(|error| signature(error) == one), "{length}: {one}");
            assert_eq!(signature(&one), one, "{length}");
        }
        let cause = Cause::of(ids.map(|id| (format!("{} {id} {id}", "word ".repeat(58)), 1)), false).unwrap();
        assert_eq!((cause.count, cause.others), (2, 0), "{cause:?}");
    }

    #[test]
    fn the_most_frequent_cause_is_named_and_the_others_are_counted() {
        let errors = [("row 1 is gone", 2), ("no route", 3), ("row 2 is gone", 2), ("timeout", 1)];
        let counted = errors.map(|(error, count)| (error.to_owned(), count));
        let cause = Cause::of(counted, false).unwrap();
        assert_eq!((cause.text.as_str(), cause.count, cause.others), ("row # is gone", 4, 2));
        assert_eq!(cause.shown_example(), "row 1 is gone", "with its numbers");
        let one = [(String::from("message 7 has 2040 bytes"), 2)];
        assert_eq!(Cause::of(one, false).unwrap().shown(), "message 7 has 2040 bytes");
        let long = ("x".repeat(ERROR_CHARS_MAX), 1);
        assert!(Cause::of([long], false).unwrap().shown().ends_with("x…"));
        assert_eq!(Cause::of([], false), None);
    }

    /// Goal: the error that stops the others is named, however few messages have it. Oracle: the
    /// cause of two that are refused for themselves, and of one that 665 wait for.
    #[test]
    fn the_cause_is_the_one_that_most_messages_wait_for() {
        let errors = [("status 422 for message 7", 1), ("status 422 for message 8", 1), ("status 503", 1)];
        let counted = || errors.map(|(error, count)| (error.to_owned(), count));
        let behind = [("status 503", 665), ("status 422 for message 9", 2)];
        let behind = behind.map(|(error, count)| (signature(error), count)).into();
        let cause = Cause::before(counted(), &behind, false).unwrap();
        assert_eq!((cause.text.as_str(), cause.count, cause.behind, cause.others), ("status 503", 1, 665, 1));
        let cause = Cause::of(counted(), false).unwrap();
        assert_eq!((cause.text.as_str(), cause.count, cause.behind), ("status # for message #", 2, 0));
    }

    /// Goal: no name and no length of an error hides its remedy. Oracle: the shown texts of errors
    /// of which the database has returned the beginning.
    #[test]
    fn a_whole_error_shows_its_remedy() {
        let whole = format!("topic \"{}\" is missing: create it, or correct its name", "t".repeat(260));
        let whole = format!("{whole}; message 7 {}came from there", "and another ".repeat(90));
        let cut: String = whole.chars().take(ERROR_CHARS_MAX).collect();
        let cut = Cause::of([(cut, 3)], false).unwrap();
        let before = signature(&cut.text);
        assert!(cut.is_cut && !cut.shown().contains("correct its name"), "{}", cut.shown());
        let cause = cut.with_whole(&whole);
        let shown = cause.shown();
        assert!(shown.contains("t…t") && shown.contains("create it, or correct its name; "), "{shown}");
        assert!(shown.ends_with("came from there") && shown.chars().count() < SHOWN_CHARS_MAX, "{shown}");
        assert_eq!(signature(&cause.text), before, "the filter of its messages is the same");
    }
}
