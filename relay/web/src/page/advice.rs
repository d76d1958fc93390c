//! The advice of operators' requests in the words of the page. `operate` writes it for the command
//! line, whose options are fields, lists and buttons here.

use operate::OperateError;

/// Parts of advice, and what people find on the page instead.
const WORDS: [(&str, &str); 22] = [
    ("`relay search --key KEY` finds the messages of an ordering key", "Messages finds them by ordering key"),
    ("`relay retention` shows what is kept, and why", "Messages lists what is left"),
    ("`relay retention` shows what is kept", "Messages lists what is left"),
    ("add --pipeline, or give the message id", "choose a pipeline, or give the message id"),
    (
        ", with --source outbox, --source inbox or --inbox, or with --pipeline and the message's position in \
         the log",
        ", by source, pipeline or consumer",
    ),
    (
        "`relay dead list` shows dead messages, and with --state other parked ones",
        "Dead letters lists dead messages, and with another state other parked ones",
    ),
    ("add --source, --pipeline or --consumer", "filter by source, pipeline or consumer"),
    ("`relay keys list` shows stuck keys", "Keys lists stuck keys"),
    ("`relay status` shows what is paused", "Overview shows what is paused"),
    ("`relay show` shows its history", "its own page shows its history"),
    ("`relay show` shows the history of each", "the page of each shows its history"),
    ("run `relay resume` first", "resume it first"),
    (
        "`relay audit --action replayed` lists replays that have ended",
        "Audit lists replays that have ended, as replayed",
    ),
    (": run `relay run` first", ": start the relay first"),
    ("--from-id must not be larger than --to-id", "the first position must not be larger than the last one"),
    ("--since must not be later than --until", "the beginning must not be later than the end"),
    ("use --from-id ", "begin at position "),
    ("continue with --from-id ", "continue from position "),
    (", or repeat the whole command", ", or repeat the whole replay"),
    (": repeat the command", ": repeat the replay"),
    (", or narrow the range with --since and --until", ", or narrow the range"),
    ("see `relay sagas show`", "the page of the saga lists its steps"),
];

/// The beginning of advice that lists topics and keys. Their names may look like an option or a
/// command.
const NAMES: &str = "currently paused: ";

/// Returns advice in the words of the page, without the clauses that only concern the command line;
/// `None` if there is no other. Advice to use a command stays where the page cannot do the same.
pub(crate) fn of(error: &OperateError) -> Option<String> {
    let help = error.help()?;
    if help.starts_with(NAMES) {
        return Some(help.to_owned());
    }
    let advice = in_words(help);
    let kept: Vec<&str> = advice.split("; ").filter(|clause| !is_of_commands(clause)).collect();
    Some(kept.join("; ")).filter(|text| !text.is_empty())
}

/// Returns a text in which the parts that name commands are those of the page.
pub(crate) fn in_words(text: &str) -> String {
    let mut text = text.to_owned();
    for (of_commands, of_page) in WORDS {
        if text.contains(of_commands) {
            text = text.replace(of_commands, of_page);
        }
    }
    text
}

/// Returns an error with its advice, for a result that is shown later.
pub(crate) fn told(error: &OperateError) -> String {
    match of(error) {
        Some(advice) => format!("{}; {advice}", in_words(&error.to_string())),
        None => in_words(&error.to_string()),
    }
}

fn is_of_commands(clause: &str) -> bool {
    let names_one = clause.contains("`relay ") || clause.contains(" --") || clause.starts_with("--");
    names_one && !clause.contains("use `relay ")
}

#[cfg(test)]
mod tests {
    use std::fs::{read_dir, read_to_string};
    use std::path::Path;

    use super::*;

    /// The crates whose texts come to the page, as paths from this one.
    const SOURCES: [&str; 2] = ["../operate/src", "../../saga/src"];

    fn advice(help: &str) -> Option<String> {
        of(&OperateError::refused("refused", help))
    }

    /// Returns the program below a directory, without comments and tests. Texts that are continued
    /// on the next line are joined.
    fn source(directory: &Path) -> String {
        let mut program = String::new();
        for entry in read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let name = path.to_string_lossy();
            if path.is_dir() {
                program += &source(&path);
            } else if name.ends_with(".rs") && !name.ends_with("tests.rs") {
                let text = read_to_string(&path).unwrap();
                let text = text.split("\nmod tests {").next().unwrap_or_default();
                for line in text.lines().map(str::trim_start).filter(|line| !line.starts_with("//")) {
                    match line.strip_suffix('\\') {
                        Some(continued) => program += continued,
                        None => program.extend([line, "\n"]),
                    }
                }
            }
        }
        program
    }

    /// Goal: advice whose words change in `operate` does not fall back to those of the command line
    /// unseen. Oracle: the source of the crates that write it has each part of the table.
    #[test]
    fn every_part_of_the_table_is_in_the_program() {
        let program: String = SOURCES.iter().map(|directory| source(Path::new(directory))).collect();
        for part in WORDS.iter().map(|(of_commands, _)| *of_commands).chain([NAMES]) {
            assert!(program.contains(part), "{part:?} is nowhere: correct the table");
        }
    }

    /// Goal: a row that comes first does not keep a longer one from its words. Oracle: no row has
    /// an earlier one as a part, whose replacement would break it.
    #[test]
    fn no_part_is_replaced_before_a_longer_one() {
        for (index, (longer, _)) in WORDS.iter().enumerate() {
            for (part, _) in WORDS.iter().take(index) {
                assert!(!longer.contains(part), "{part:?} comes before {longer:?}");
            }
        }
    }

    /// Goal: what is paused is listed, whatever it is called. Oracle: a key that looks like options
    /// and like a command.
    #[test]
    fn names_are_no_commands() {
        for names in ["key a --b", "topic orders, key x; --y", "key run `relay resume` first"] {
            let help = format!("{NAMES}{names}");
            assert_eq!(advice(&help), Some(help));
        }
    }

    /// Goal: people who see the page are not sent to a terminal for what the page can do. Oracle:
    /// the advice of the requests that the page makes.
    #[test]
    fn advice_has_the_words_of_the_page() {
        for (help, told) in [
            (
                "give a position in the log (a number), a message id or the id of a dead letter (UUIDs); \
                 `relay search --key KEY` finds the messages of an ordering key",
                "give a position in the log (a number), a message id or the id of a dead letter (UUIDs); \
                 Messages finds them by ordering key",
            ),
            ("`relay retention` shows what is kept", "Messages lists what is left"),
            ("`relay retention` shows what is kept, and why", "Messages lists what is left"),
            ("add --pipeline, or give the message id", "choose a pipeline, or give the message id"),
            (
                "restrict it to a database that answers, with --source outbox, --source inbox or --inbox, or \
                 with --pipeline and the message's position in the log",
                "restrict it to a database that answers, by source, pipeline or consumer",
            ),
            (
                "it left; `relay dead list` shows dead messages, and with --state other parked ones",
                "it left; Dead letters lists dead messages, and with another state other parked ones",
            ),
            ("add --source, --pipeline or --consumer", "filter by source, pipeline or consumer"),
            (
                "`relay keys list` shows stuck keys; a key whose lease has not expired may still complete",
                "Keys lists stuck keys; a key whose lease has not expired may still complete",
            ),
            ("`relay status` shows what is paused", "Overview shows what is paused"),
            (
                "retention has deleted it, or it was never here: `relay show` shows its history",
                "retention has deleted it, or it was never here: its own page shows its history",
            ),
            ("run `relay resume` first, or choose others", "resume it first, or choose others"),
            (
                "use --from-id 7, or omit the beginning of the range to send all messages that are left",
                "begin at position 7, or omit the beginning of the range to send all messages that are left",
            ),
            (
                "all messages up to 6 are confirmed: continue with --from-id 7, or repeat the whole command",
                "all messages up to 6 are confirmed: continue from position 7, or repeat the whole replay",
            ),
            (
                "nothing was changed: compare again once this database answers; if it is slow, raise \
                 --statement-timeout",
                "nothing was changed: compare again once this database answers",
            ),
            (
                "use `relay dead edit --id 7 --payload-file FILE`",
                "use `relay dead edit --id 7 --payload-file FILE`",
            ),
            ("nothing was changed: try again", "nothing was changed: try again"),
        ] {
            assert_eq!(advice(help).as_deref(), Some(told), "{help}");
        }
        assert_eq!(advice("add --pipeline NAME"), None);
        assert_eq!(advice("--keep must be longer"), None);
        assert_eq!(advice(""), None);
    }

    #[test]
    fn an_error_that_names_a_command_names_the_page_instead() {
        let error = OperateError::refused("it is undone; see `relay sagas show`", "add --pipeline NAME");
        assert_eq!(told(&error), "it is undone; the page of the saga lists its steps");
        let error = OperateError::refused("no", "try again");
        assert_eq!(told(&error), "no; try again");
    }
}
