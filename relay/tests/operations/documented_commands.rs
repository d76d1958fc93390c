//! Each command of the relay that a document prints is one that the relay accepts.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Words that may stand in front of the program in a command.
const PREFIXES: [&[&str]; 2] = [&["sudo", "-u", "relay"], &["runuser", "-u", "relay", "--"]];

/// Every document below `docs`, and the pages of the repository and of the package.
pub(super) fn documents() -> Vec<PathBuf> {
    let root = Path::new("..");
    let mut found = vec![root.join("README.md"), root.join("relay/README.md")];
    let mut folders = vec![root.join("docs")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                found.push(path);
            }
        }
    }
    found
}

/// The command lines of the console blocks: the text after a prompt.
fn command_lines(document: &str) -> impl Iterator<Item = &str> {
    let blocks = document.split("```console\n").skip(1).filter_map(|rest| rest.split("```").next());
    let lines = blocks.flat_map(str::lines);
    lines.filter_map(|line| line.strip_prefix("$ ").or_else(|| line.strip_prefix("# ")))
}

/// The commands of a line, each as the words into which a shell splits it.
fn commands(line: &str) -> Vec<Vec<String>> {
    let mut commands = vec![Vec::new()];
    let (mut word, mut quote) = (None::<String>, None);
    for c in line.chars().chain([' ']) {
        match (quote, c) {
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (Some(open), c) if open == c => quote = None,
            // A comment, or text that a document omits.
            (None, '#' | '…') if word.is_none() => break,
            (None, ' ' | '|' | ';' | '&' | '>') => {
                commands.last_mut().unwrap().extend(word.take());
                if c != ' ' {
                    commands.push(Vec::new());
                }
            }
            (_, c) => word.get_or_insert_default().push(c),
        }
    }
    commands
}

/// The arguments of a command, if it is the relay's.
fn arguments(command: &[String]) -> Option<&[String]> {
    let is_variable = |word: &&String| {
        word.split_once('=').is_some_and(|(name, _)| name.chars().all(|c| c.is_ascii_uppercase() || c == '_'))
    };
    let mut rest = &command[command.iter().take_while(is_variable).count()..];
    for prefix in PREFIXES {
        if rest.iter().zip(prefix).filter(|(word, part)| word == part).count() == prefix.len() {
            rest = &rest[prefix.len()..];
        }
    }
    let (program, arguments) = rest.split_first()?;
    (program == "relay" || program == "target/release/relay").then_some(arguments)
}

/// Says why the relay does not accept these arguments. With `--help` after them it does nothing.
fn refusal(arguments: &[String]) -> Option<String> {
    let relay = Command::new(env!("CARGO_BIN_EXE_relay")).args(arguments).arg("--help").output().unwrap();
    (!relay.status.success()).then(|| String::from_utf8_lossy(&relay.stderr).into_owned())
}

#[test]
fn every_printed_command_is_one_that_the_relay_takes() {
    let mut taken = 0;
    let mut refused = Vec::new();
    for path in documents() {
        let document = std::fs::read_to_string(&path).unwrap();
        for line in command_lines(&document) {
            for arguments in commands(line).iter().filter_map(|command| arguments(command)) {
                match refusal(arguments) {
                    None => taken += 1,
                    Some(why) => refused.push(format!("{}: {line}\n{why}", path.display())),
                }
            }
        }
    }
    assert!(refused.is_empty(), "{}", refused.join("\n"));
    assert!(taken > 100, "only {taken} commands were found");
}

#[test]
fn a_command_that_the_relay_does_not_take_is_found() {
    let line =
        "# A=b runuser -u relay -- relay check --config 'a b' | relay migrate roles --pipeline x > y & # z";
    let document = format!("```console\n{line}\n```\n");
    let commands: Vec<Vec<String>> = command_lines(&document).flat_map(commands).collect();
    let calls: Vec<&[String]> = commands.iter().filter_map(|command| arguments(command)).collect();
    assert_eq!(calls, [&["check", "--config", "a b"][..], &["migrate", "roles", "--pipeline", "x"][..]]);
    assert_eq!(refusal(calls[0]), None);
    assert!(refusal(calls[1]).unwrap().contains("--pipeline"));
}
