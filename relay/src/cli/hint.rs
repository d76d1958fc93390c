//! Suggested commands, complete enough to be pasted: with the configuration and the pipeline or the
//! inbox that this command was given, and quoted for the shell.

use std::borrow::Cow;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::sync::LazyLock;

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};
use operate::redact::holds_password;
use operate::text::harmless;

use super::help;

/// Returns a command of this program. The words are those after `relay`.
pub(crate) fn command(words: &[&str]) -> String {
    PROCESS.command(words)
}

/// Completes the commands in a text, which are between backticks.
pub(crate) fn completed(text: &str) -> String {
    if text.contains(OPENING) { PROCESS.completed(text) } else { text.to_owned() }
}

/// Quotes a word for the shell. The result has no character that would be escaped when it is
/// printed: pasted, it would be another word.
pub(crate) fn quoted(word: &str) -> String {
    if word.contains(['\n', '\t']) || harmless(word) != word {
        return spelled(word);
    }
    // Only a NUL character cannot be quoted, and no argument contains one.
    shlex::try_quote(word).map_or_else(|_| word.to_owned(), Cow::into_owned)
}

/// Quotes a word with `$'…'`, whose escapes bash, zsh, ksh and POSIX of 2024 know. Bytes are octal:
/// `\u` depends on the locale, and the length of `\x` on the shell. Quotes and exclamation marks
/// are octal as well: an interactive bash 3.2 takes an escaped quote for the end of the word, and
/// replaces what follows a mark with a command from its history.
fn spelled(word: &str) -> String {
    let mut text = String::from("$'");
    for c in word.chars() {
        match c {
            '\\' => text.push_str("\\\\"),
            '\'' => text.push_str("\\047"),
            '!' => text.push_str("\\041"),
            '\n' => text.push_str("\\n"),
            '\t' => text.push_str("\\t"),
            c if harmless(c.encode_utf8(&mut [0; 4])) == c.to_string() => text.push(c),
            c => {
                for byte in c.encode_utf8(&mut [0; 4]).bytes() {
                    // Writing to a String cannot fail.
                    let _ = write!(text, "\\{byte:03o}");
                }
            }
        }
    }
    text.push('\'');
    text
}

/// The beginning of a command in a text.
pub(crate) const OPENING: &str = "`relay ";

/// The command line of this process.
static PROCESS: LazyLock<Given> = LazyLock::new(|| Given::of(std::env::args_os()));

/// The options that a command line names explicitly. Variables of the environment also apply to
/// the next command.
struct Given {
    config: Option<String>,
    pipeline: Option<String>,
    /// The options that name an inbox outside of the configuration, each with its value, if it has
    /// one.
    inbox: Vec<String>,
    /// The commands of this program.
    definition: Command,
}

/// The options of an inbox that have a value, apart from its URL.
const OF_INBOX: [&str; 2] = ["inbox-file", "schema"];

impl Given {
    /// Reads the words of a command line. An invalid one names nothing.
    fn of(words: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> Self {
        let mut definition = help::command();
        let nothing = Self { config: None, pipeline: None, inbox: Vec::new(), definition: help::command() };
        let Ok(matches) = definition.try_get_matches_from_mut(words) else { return nothing };
        let mut command = &definition;
        let mut matches = &matches;
        while let Some((name, below)) = matches.subcommand() {
            let Some(inner) = command.find_subcommand(name) else { break };
            command = inner;
            matches = below;
        }
        let named = |name| value(command, matches, name);
        let inbox = if takes_inbox(command) { inbox_options(command, matches) } else { Vec::new() };
        Self { config: named("config"), pipeline: named("pipeline"), inbox, ..nothing }
    }

    fn command(&self, words: &[&str]) -> String {
        let quoted = words.iter().map(|word| format!(" {}", quoted(word))).collect::<String>();
        format!("relay{quoted}{}", self.rest(words))
    }

    fn completed(&self, text: &str) -> String {
        let parts = text.split('`').enumerate().map(|(index, part)| {
            let command = part.strip_prefix("relay ").filter(|_| index % 2 == 1);
            match command.and_then(shlex::split) {
                Some(words) => {
                    let words: Vec<&str> = words.iter().map(String::as_str).collect();
                    format!("{part}{}", self.rest(&words))
                }
                None => part.to_owned(),
            }
        });
        parts.collect::<Vec<_>>().join("`")
    }

    /// Returns the options that a command needs and lacks.
    fn rest(&self, words: &[&str]) -> String {
        let mut command = &self.definition;
        for word in words {
            match command.find_subcommand(word) {
                Some(inner) => command = inner,
                None => break,
            }
        }
        let has = |flag: &str| words.contains(&flag);
        let option = |name: &str, value: Option<&String>| {
            let flag = format!("--{name}");
            let takes = command.get_arguments().any(|argument| argument.get_long() == Some(name));
            let value = value.filter(|_| takes && !has(&flag))?;
            Some(format!(" {flag} {}", quoted(value)))
        };
        let mut rest = String::new();
        // An inbox outside of the configuration belongs to no pipeline: clap refuses both together.
        if !has("--inbox") && !has("--inbox-file") {
            rest.extend(option("pipeline", self.pipeline.as_ref()));
            if takes_inbox(command) && !has("--pipeline") && !has("--source") {
                rest.extend(self.inbox.iter().map(String::as_str));
            }
        }
        rest.extend(option("config", self.config.as_ref()));
        rest
    }
}

/// Returns whether a command takes the URL of an inbox. `relay verify` takes several inboxes, each
/// with its consumer.
fn takes_inbox(command: &Command) -> bool {
    let is_url = |argument: &Arg| {
        let names = argument.get_value_names().unwrap_or_default();
        names.iter().any(|name| name.as_str() == "URL")
    };
    command.get_arguments().any(|argument| argument.get_long() == Some("inbox") && is_url(argument))
}

/// Returns the options of the command line that name an inbox, each after a space. A URL with a
/// password, which is refused, is not repeated.
fn inbox_options(command: &Command, matches: &ArgMatches) -> Vec<String> {
    let option = |name: &str, value: String| format!(" --{name} {}", quoted(&value));
    let url = value(command, matches, "inbox").filter(|url| !holds_password(url));
    let mut options: Vec<String> = url.map(|url| option("inbox", url)).into_iter().collect();
    for name in OF_INBOX {
        options.extend(value(command, matches, name).map(|value| option(name, value)));
    }
    if value(command, matches, "allow-plaintext").is_some() {
        options.push(String::from(" --allow-plaintext"));
    }
    options
}

/// Returns the value of an option that the command line has.
fn value(command: &Command, matches: &ArgMatches, name: &str) -> Option<String> {
    let argument = command.get_arguments().find(|argument| argument.get_long() == Some(name))?;
    let id = argument.get_id().as_str();
    if matches.value_source(id)? != ValueSource::CommandLine {
        return None;
    }
    Some(matches.get_raw(id)?.next()?.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(line: &str) -> Given {
        Given::of(shlex::split(line).unwrap())
    }

    #[test]
    fn a_suggested_command_has_what_this_one_was_given() {
        let plain = given("relay dead list");
        assert_eq!((&plain.config, &plain.pipeline), (&None, &None));
        assert_eq!(plain.command(&["dead", "show", "--id", "7"]), "relay dead show --id 7");
        let given = given("relay dead list --config '/srv/my relay.toml' --pipeline orders");
        assert_eq!(
            given.command(&["dead", "show", "--id", "a b"]),
            "relay dead show --id 'a b' --pipeline orders --config '/srv/my relay.toml'"
        );
        let named = given.command(&["dead", "show", "--pipeline", "bills"]);
        assert_eq!(named, "relay dead show --pipeline bills --config '/srv/my relay.toml'");
        assert_eq!(given.command(&["init"]), "relay init", "it takes neither");
    }

    /// Goal: a suggested command finds the messages of an inbox that is only on the command line.
    /// Oracle: commands that take this inbox, that name another place, and that take none.
    #[test]
    fn a_suggested_command_has_the_inbox_of_this_one() {
        let named = given("relay dead list --inbox sqlite:in.db");
        assert_eq!(named.command(&["dead", "decision", "7"]), "relay dead decision 7 --inbox sqlite:in.db");
        assert_eq!(
            named.completed("first see `relay dead list`, then `relay status`"),
            "first see `relay dead list --inbox sqlite:in.db`, then `relay status`"
        );
        for words in [
            &["dead", "list", "--source", "inbox"][..],
            &["dead", "list", "--pipeline", "orders"],
            &["dead", "list", "--inbox", "sqlite:other.db"],
            &["verify"],
        ] {
            assert_eq!(named.command(words), format!("relay {}", words.join(" ")));
        }
        let file = given("relay audit --inbox-file /run/in --schema app --allow-plaintext --config a.toml");
        assert_eq!(
            file.command(&["show", "7"]),
            "relay show 7 --inbox-file /run/in --schema app --allow-plaintext --config a.toml"
        );
        let piped = given("relay dead list --pipeline orders");
        let other = ["dead", "list", "--inbox", "sqlite:in.db"];
        assert_eq!(piped.command(&other), "relay dead list --inbox sqlite:in.db");
        // Several, each with a consumer.
        let compared = given("relay verify --inbox billing=sqlite:in.db");
        assert_eq!(compared.command(&["dead", "list"]), "relay dead list");
        let secret = given("relay dead list --inbox postgres://u:s3cret@h/d");
        assert_eq!(secret.command(&["dead", "list"]), "relay dead list");
    }

    #[test]
    fn commands_in_a_text_are_completed() {
        let given = given("relay status --config a.toml");
        assert_eq!(
            given.completed("`relay dead list` shows them, `--limit` more; `relay init` writes one"),
            "`relay dead list --config a.toml` shows them, `--limit` more; `relay init` writes one"
        );
        assert_eq!(given.completed("not a ` command"), "not a ` command");
    }

    /// Goal: a command whose key has invisible or control characters finds this key when it is
    /// pasted. Oracle: the bytes that a shell reads from the printed word, which printing does not
    /// change.
    #[test]
    fn a_word_that_would_be_escaped_is_spelled_for_the_shell() {
        let hidden = "\u{202e}evil\u{202c}-\u{5e9}\u{5dc}";
        for word in [hidden, "a\\u{202e}b", "it's\u{200b}1 \\ $HOME `x` !!", "a\nb\t\u{7}7\u{9b}2J", "\\"] {
            let printed = quoted(word);
            assert!(harmless(&printed) == printed && !printed.contains(['\n', '\t']), "{printed}");
            if let Some(spelled) = printed.strip_prefix("$'") {
                assert_eq!(spelled.find(['\'', '!']), Some(spelled.len() - 1), "for the history: {printed}");
            }
            let script = format!("printf %s {printed}");
            let ran = std::process::Command::new("bash").args(["-c", &script]).env("LC_ALL", "C").output();
            assert_eq!(ran.unwrap().stdout, word.as_bytes(), "{printed}");
        }
        assert_eq!(quoted(hidden), "$'\\342\\200\\256evil\\342\\200\\254-\u{5e9}\u{5dc}'");
    }

    #[test]
    fn a_suggested_command_is_one_that_the_shell_reads_back() {
        let given = given("relay lag --config '$x!'");
        let words = ["resume", "--key", "it's; rm -rf \"$HOME\" !!", "--note", "WHY", "--pipeline", "orders"];
        let read = shlex::split(&given.command(&words)).unwrap();
        assert_eq!(read[1..8], words);
        assert_eq!(read[8..], ["--config", "$x!"]);
    }
}
