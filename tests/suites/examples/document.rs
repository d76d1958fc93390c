//! A document whose commands are run as written, and whose printed lines are compared.

use std::process::Stdio;
use std::time::Duration;

use tests::{Failure, Outcome};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

/// Maximum time for one command. Only a failing test reaches it.
const PATIENCE: Duration = Duration::from_secs(240);
/// Printed after the output of each command, before its exit code.
const MARK: &str = "--- the command has ended:";

/// A command of a document, with the lines that the document prints below it.
#[derive(Debug, PartialEq)]
pub(crate) struct Step {
    pub(crate) command: String,
    pub(crate) printed: Vec<String>,
}

/// Returns the steps of all blocks that are marked `console`. A line that begins with `$` is a
/// command, together with the lines between `<<END` and `END`. Other lines are its expected output.
pub(crate) fn steps(document: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let (mut is_console, mut is_input) = (false, false);
    for line in document.lines() {
        if let Some(kind) = line.strip_prefix("```") {
            is_console = kind == "console";
        } else if is_console {
            match (line.strip_prefix("$ "), steps.last_mut()) {
                (_, Some(step)) if is_input => {
                    step.command.push('\n');
                    step.command.push_str(line);
                    is_input = line != "END";
                }
                (Some(command), _) => {
                    is_input = command.contains("<<END");
                    steps.push(Step { command: command.to_owned(), printed: Vec::new() });
                }
                (None, Some(step)) => step.printed.push(line.to_owned()),
                (None, None) => {}
            }
        }
    }
    steps
}

/// Returns whether the lines are those of the document. A line with only `…` stands for any number
/// of lines; a `…` within a line stands for any text.
pub(crate) fn is_as_printed(printed: &[String], found: &[String]) -> bool {
    match printed.split_first() {
        None => found.is_empty(),
        Some((line, rest)) if line.trim() == "…" => {
            (0..=found.len()).any(|skipped| is_as_printed(rest, &found[skipped..]))
        }
        Some((line, rest)) => {
            found.first().is_some_and(|first| fits(line.trim_end(), first.trim_end()))
                && is_as_printed(rest, &found[1..])
        }
    }
}

fn fits(line: &str, found: &str) -> bool {
    let mut parts = line.split('…');
    let Some(mut rest) = parts.next().and_then(|first| found.strip_prefix(first)) else { return false };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else { return rest.is_empty() };
    for part in middle {
        let Some((_, behind)) = rest.split_once(part) else { return false };
        rest = behind;
    }
    rest.ends_with(last)
}

/// A shell that runs one command after another. Dropping it kills it and the programs it started.
pub(crate) struct Shell {
    child: Child,
    output: Lines<BufReader<ChildStdout>>,
}

impl Shell {
    /// Starts a shell.
    pub(crate) fn start(mut shell: Command) -> Result<Self, Failure> {
        // The shell has its own process group, so that no program outlives a failed test.
        shell.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0).kill_on_drop(true);
        let mut child = shell.spawn()?;
        let output = BufReader::new(child.stdout.take().ok_or("no standard output")?).lines();
        Ok(Self { child, output })
    }

    /// Runs the steps in their order.
    pub(crate) async fn follow(&mut self, steps: &[Step]) -> Outcome {
        self.run("exec 2>&1").await?;
        for Step { command, printed } in steps {
            let (code, found) = self.run(command).await?;
            let found_text = found.join("\n");
            if code != "0" {
                return Err(format!("$ {command}\nended with {code}:\n{found_text}").into());
            }
            if !is_as_printed(printed, &found) {
                let expected = printed.join("\n");
                return Err(format!("$ {command}\nprinted\n{found_text}\ninstead of\n{expected}").into());
            }
        }
        Ok(())
    }

    /// Runs a command. Returns its exit code and its output.
    async fn run(&mut self, command: &str) -> Result<(String, Vec<String>), Failure> {
        let stdin = self.child.stdin.as_mut().ok_or("the shell has ended")?;
        // The mark begins a new line, even if the command's last line has no newline.
        let marked = format!("{command}\nprintf '\\n{MARK} %s\\n' $?\n");
        stdin.write_all(marked.as_bytes()).await?;
        let mut found = Vec::new();
        let read = async {
            while let Some(line) = self.output.next_line().await? {
                if let Some(code) = line.strip_prefix(MARK) {
                    return Ok(code.trim().to_owned());
                }
                found.push(line);
            }
            Err(Failure::from("the shell has ended"))
        };
        let code = tokio::time::timeout(PATIENCE, read).await;
        match code {
            Ok(Ok(code)) => {
                // The empty line belongs to the mark.
                found.pop_if(|line| line.is_empty());
                Ok((code, found))
            }
            Ok(Err(error)) => Err(format!("$ {command}\n{error}:\n{}", found.join("\n")).into()),
            Err(_) => {
                let found = found.join("\n");
                Err(format!("$ {command}\nhas not ended after {PATIENCE:?}:\n{found}").into())
            }
        }
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        if let Some(id) = self.child.id() {
            let group = format!("-{id}");
            _ = std::process::Command::new("kill").args(["-KILL", "--", &group]).status();
        }
    }
}
