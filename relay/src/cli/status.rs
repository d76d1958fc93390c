//! `relay status`: the leader, waiting and parked messages, and why they wait.

use std::collections::BTreeMap;
use std::io::IsTerminal as _;
use std::pin::pin;
use std::time::{Duration, Instant};

use clap::Args;
use operate::cause::Cause;
use operate::status::{PipelineStatus, Rank, Symptom, Wait, statement_that_ends, status};
use operate::units::Time;

use super::config::ConfigFile;
use super::exit::Exit;
use super::failure::Failure;
use super::hint;
use super::operator::viewer;
use super::output::{self, Format, Table, age, or_dash, sentence, terminal_width};
use super::pause::resume_command;
use super::progress::during;

/// The arguments of `relay status`.
#[derive(Debug, Args)]
pub struct Status {
    #[command(flatten)]
    config: ConfigFile,

    /// Only this pipeline.
    #[arg(long, value_name = "NAME")]
    pipeline: Option<String>,

    /// Repeat every 2s, or at this interval, until a signal stops it.
    #[arg(long, value_name = "EVERY", num_args = 0..=1, default_missing_value = "2s")]
    watch: Option<Time>,
}

impl Status {
    pub(crate) async fn execute(&self, format: Format) -> Result<Exit, Failure> {
        let Some(Time(every)) = self.watch else {
            let shown = during("looking", self.look()).await?;
            show(&shown, format)?;
            return Ok(worst(&shown));
        };
        let mut ended = pin!(tokio::signal::ctrl_c());
        let mut outages = Outages::default();
        loop {
            let mut shown = self.look().await?;
            outages.watch(&mut shown);
            if format == Format::Table && std::io::stdout().is_terminal() {
                output::print(CLEARED)?;
            }
            let has_reader = show(&shown, format)?;
            let exit = worst(&shown);
            if !has_reader {
                return Ok(exit);
            }
            tokio::select! {
                _ = &mut ended => return Ok(exit),
                () = tokio::time::sleep(every.max(WATCH_MIN)) => {}
            }
        }
    }

    async fn look(&self) -> Result<Vec<PipelineStatus>, Failure> {
        let config = self.config.read()?;
        let pipelines = match &self.pipeline {
            Some(name) => vec![super::config::find(&config, name)?],
            None => config.pipelines.iter().collect(),
        };
        Ok(status(pipelines, &viewer()).await?)
    }
}

/// Since when each pipeline's database has not answered, as far as the command has watched it.
#[derive(Default)]
struct Outages(BTreeMap<String, Instant>);

impl Outages {
    /// Notes which databases do not answer, and since when.
    fn watch(&mut self, shown: &mut [PipelineStatus]) {
        for status in shown {
            if !status.is_away() {
                self.0.remove(&status.pipeline);
                continue;
            }
            match self.0.get(&status.pipeline) {
                Some(since) => status.away_for = Some(since.elapsed()),
                None => _ = self.0.insert(status.pipeline.clone(), Instant::now()),
            }
        }
    }
}

/// Clears the screen and moves to its top.
const CLEARED: &str = "\u{1b}[2J\u{1b}[H";

/// Minimum pause between two queries: each opens its own connections.
const WATCH_MIN: Duration = Duration::from_millis(200);

/// Prints the status, after what hides a part of it. Returns whether standard output has a reader.
fn show(shown: &[PipelineStatus], format: Format) -> Result<bool, Failure> {
    for Problem { text, command } in problems(shown) {
        note!("{}", sentence(&text, terminal_width()));
        if let Some(command) = command {
            note!("  {command}");
        }
    }
    format.print_more(&shown, |shown| text(shown, terminal_width()))
}

fn worst(shown: &[PipelineStatus]) -> Exit {
    shown.iter().map(exit).max().unwrap_or(Exit::Success)
}

/// An error of this command, and the command that shows more about it.
#[derive(Debug, PartialEq, Eq)]
struct Problem {
    text: String,
    command: Option<String>,
}

/// Returns the errors of this command: databases that do not answer, and then names that may be
/// wrong.
fn problems(shown: &[PipelineStatus]) -> Vec<Problem> {
    let problem = |shown: &PipelineStatus| {
        let waits = shown.waits();
        let away = waits.iter().find(|wait| wait.symptom == Symptom::DatabaseAway);
        let text = away.map(Wait::told).or_else(|| shown.problem.clone())?;
        let command = away.and_then(|wait| next(&shown.pipeline, wait));
        Some(Problem { text: format!("{}: {text}", shown.pipeline), command })
    };
    let mut problems: Vec<Problem> = shown.iter().filter_map(problem).collect();
    problems.sort_by_key(|problem| problem.command.is_none());
    problems
}

/// Returns the exit code, by the rule of the page's summary. Messages in flight or scheduled for
/// later are not a failure.
fn exit(shown: &PipelineStatus) -> Exit {
    match &shown.error {
        Some(error) => Failure::from(error.clone()).exit(),
        None if shown.needs_attention() => Exit::Unavailable,
        None => Exit::Success,
    }
}

/// Returns a row for each pipeline, those with problems first, and then the reasons.
fn text(shown: &[PipelineStatus], width: Option<usize>) -> String {
    let sorted = worst_first(shown);
    let reasons = sorted.iter().flat_map(|shown| reasons(shown, width));
    std::iter::once(table(&sorted).drawn(width)).chain(reasons).collect::<Vec<_>>().join("\n")
}

/// Returns the pipelines by their ranks, as on the page.
fn worst_first(shown: &[PipelineStatus]) -> Vec<&PipelineStatus> {
    let mut ranked: Vec<(Rank<'_>, &PipelineStatus)> =
        shown.iter().map(|shown| (Rank::of_pipeline(shown, &shown.waits()), shown)).collect();
    ranked.sort_by_key(|(rank, _)| *rank);
    ranked.into_iter().map(|(_, shown)| shown).collect()
}

const HEADERS: [&str; 10] =
    ["pipeline", "state", "holder", "standbys", "epoch", "lease", "backlog", "oldest", "parked", "history"];

fn table(shown: &[&PipelineStatus]) -> Table<10> {
    let ago = |seconds: Option<f64>| or_dash(seconds.map(|seconds| age(Duration::from_secs_f64(seconds))));
    let rows = shown.iter().map(|shown| {
        [
            shown.pipeline.clone(),
            state(shown),
            or_dash(shown.holder.as_ref()),
            or_dash(shown.standbys),
            or_dash(shown.epoch),
            ago(shown.lease_remaining_seconds),
            // Without an oldest entry nothing waits, even if ids have gaps.
            match (shown.oldest_pending_id, shown.backlog_entries_max) {
                (Some(_), Some(entries)) => format!("≤ {entries}"),
                (None, Some(entries)) => entries.to_string(),
                _ => String::from("-"),
            },
            ago(shown.oldest_pending_age_seconds),
            parked(shown),
            ago(shown.history_age_seconds),
        ]
    });
    Table::new(HEADERS, rows)
        .optional(&["epoch", "lease", "history", "standbys", "holder", "oldest", "backlog"])
}

fn state(shown: &PipelineStatus) -> String {
    let how = if shown.is_transactional { ", in transactions" } else { "" };
    format!("{}{how}", shown.state)
}

/// Returns the number of parked messages in each state.
fn parked(shown: &PipelineStatus) -> String {
    let least = if shown.exceptions_are_at_least { "≥ " } else { "" };
    let counts = shown.exceptions.iter().filter(|(_, count)| **count > 0);
    let counts: Vec<String> = counts.map(|(state, count)| format!("{least}{count} {state}")).collect();
    if counts.is_empty() { String::from("-") } else { counts.join(", ") }
}

/// A condition, and the command that shows more about it or ends it.
struct Reason {
    wait: Wait,
    command: Option<String>,
}

/// Returns a sentence for each obstacle to publishing, followed by the command that shows more.
fn reasons(shown: &PipelineStatus, width: Option<usize>) -> Vec<String> {
    let mut pauses = shown.paused.iter();
    let mut reasons: Vec<Reason> = Vec::new();
    // The problem of an unreachable database is an error of this command.
    for wait in shown.waits().into_iter().filter(|wait| wait.symptom != Symptom::DatabaseAway) {
        // The conditions have the order of the pauses only before they are sorted.
        let command = match wait.symptom {
            Symptom::Paused => pauses.next().map(|pause| resume_command(&shown.pipeline, &pause.paused)),
            _ => next(&shown.pipeline, &wait),
        };
        reasons.push(Reason { wait, command });
    }
    // The cause that an operator has to repair comes before its consequences.
    reasons.sort_by_key(|reason| reason.wait.severity());
    let mut lines = Vec::new();
    for Reason { wait, command } in reasons {
        lines.push(sentence(&format!("{}: {}", shown.pipeline, wait.told()), width));
        lines.extend(wait.cause.as_ref().map(|cause| format!("  {}", sentence(&why(cause), width))));
        lines.extend(command.map(|command| format!("  {command}")));
        if wait.symptom == Symptom::RowsHeldBack {
            let statement = shown.held_back_by.as_ref().and_then(statement_that_ends);
            lines.extend(statement.map(|it| format!("  as a last resort, which rolls its work back: {it}")));
        }
    }
    lines
}

/// Returns the error of messages behind which most messages wait: an example with its numbers where
/// only these differ.
fn why(cause: &Cause) -> String {
    let least = if cause.is_at_least { "≥ " } else { "" };
    let before = match cause.behind {
        0 => String::new(),
        1 => format!(", {least}1 waits behind it"),
        behind => format!(", {least}{behind} wait behind it"),
    };
    let others = match cause.others {
        0 if cause.is_at_least => format!(" ({least}{} of them{before})", cause.count),
        0 => String::new(),
        1 => format!(" ({least}{} of them{before}, and 1 other error)", cause.count),
        others => format!(" ({least}{} of them{before}, and {others} other errors)", cause.count),
    };
    if cause.text == cause.example {
        return format!("why: {}{others}", cause.shown());
    }
    format!("why, for example: {}{others}", cause.shown_example())
}

/// Returns the command that shows more about a reason, or its remedy.
fn next(pipeline: &str, wait: &Wait) -> Option<String> {
    let words: &[&str] = match wait.symptom {
        Symptom::Dead => &["dead", "list"],
        Symptom::Held => &["dead", "list", "--state", "held"],
        Symptom::Retrying => &["dead", "list", "--state", "retrying"],
        Symptom::RowsHeldBack | Symptom::NoLeader => &["doctor", "--problems"],
        Symptom::DatabaseAway | Symptom::BrokerRefuses | Symptom::Behind => &["check"],
        Symptom::HistoryKept => &["retention", "--dry-run"],
        _ => return None,
    };
    Some(hint::command(&[words, &["--pipeline", pipeline]].concat()))
}

#[cfg(test)]
mod tests {
    use operate::pause::PauseLine;
    use operate::status::PipelineState;
    use outbox_log::ExceptionState::{Dead, Held, Retrying};
    use outbox_log::PauseScope;

    use super::*;

    fn healthy(name: &str) -> PipelineStatus {
        PipelineStatus {
            state: PipelineState::Leading,
            holder: Some(String::from("vm:30496:e2a7c81b")),
            standbys: Some(1),
            epoch: Some(6),
            lease_remaining_seconds: Some(13.0),
            backlog_entries_max: Some(0),
            history_age_seconds: Some(2_107.0),
            ..PipelineStatus::of(name, None, None)
        }
    }

    fn sick() -> PipelineStatus {
        let text = String::from("no queue is bound");
        let example = text.clone();
        let cause =
            Cause { text, example, is_cut: true, count: 1_000, behind: 0, is_at_least: true, others: 1 };
        PipelineStatus {
            backlog_entries_max: Some(2_050),
            oldest_pending_id: Some(7),
            oldest_pending_age_seconds: Some(25_380.0),
            exceptions: BTreeMap::from([(Dead, 2_009), (Held, 41)]),
            exceptions_age_seconds: BTreeMap::from([(Dead, 25_380.0), (Held, 25_380.0)]),
            causes: BTreeMap::from([(Dead, cause)]),
            ..healthy("shipping")
        }
    }

    #[test]
    fn the_status_of_80_columns_says_what_is_wrong_and_why() {
        let shown = [healthy("orders"), sick()];
        let sorted = [&shown[1], &shown[0]];
        assert_eq!(
            table(&sorted).drawn(Some(80)),
            "\
PIPELINE  STATE    HOLDER             BACKLOG  OLDEST  PARKED
shipping  leading  vm:30496:e2a7c81b  ≤ 2050   7h3m    2009 dead, 41 held
orders    leading  vm:30496:e2a7c81b  0        -       -
not shown at 80 columns: EPOCH, LEASE, HISTORY, STANDBYS (--output json has all)"
        );
        let wide = table(&sorted).drawn(Some(120));
        assert_eq!(wide, table(&sorted).drawn(None), "120 columns hold everything");
        assert!(wide.contains("≤ 2050   7h3m    2009 dead, 41 held  35m7s"), "{wide}");
        let text = text(&shown, None);
        assert!(text.starts_with("PIPELINE  STATE"), "{text}");
        assert!(
            text.ends_with(
                "shipping: 2009 messages are dead, for 7h3m: requeue or discard them\n  \
                 why: no queue is bound… (≥ 1000 of them, and 1 other error)\n  \
                 relay dead list --pipeline shipping\n\
                 shipping: 41 messages are waiting behind an earlier message with the same key, or because a \
                 topic is stopped, paused or busy, for 7h3m\n  \
                 relay dead list --state held --pipeline shipping"
            ),
            "{text}"
        );
    }

    /// Goal: the limit and the size that an operator needs are in the first command.
    #[test]
    fn errors_that_differ_in_their_numbers_are_told_by_one_of_them() {
        let text = String::from("# bytes, at most #");
        let example = String::from("2017 bytes, at most 1000");
        let cause =
            Cause { text, example, is_cut: false, count: 700, behind: 0, is_at_least: false, others: 0 };
        assert_eq!(why(&cause), "why, for example: 2017 bytes, at most 1000");
        let several = Cause { others: 2, is_at_least: true, ..cause };
        assert_eq!(
            why(&several),
            "why, for example: 2017 bytes, at most 1000 (≥ 700 of them, and 2 other errors)"
        );
        let text = String::from("status 503");
        let stops = Cause { example: text.clone(), text, count: 1, behind: 665, others: 1, ..several };
        assert_eq!(why(&stops), "why: status 503 (≥ 1 of them, ≥ 665 wait behind it, and 1 other error)");
    }

    /// Goal: a database that is away is not overlooked below the hints of a small problem, and
    /// leads somewhere. Oracle: the errors, whatever the order of the configuration is, and the
    /// order of the table.
    #[test]
    fn databases_that_do_not_answer_come_first_and_name_a_command() {
        let away = PipelineStatus {
            state: PipelineState::Unknown,
            problem: Some(String::from("the database does not answer: Connection refused")),
            ..PipelineStatus::of("orders", None, None)
        };
        let mut misspelt = PipelineStatus::of("ordres", None, None);
        misspelt.problem = Some(String::from("is the name misspelled?"));
        let few = PipelineStatus { exceptions: BTreeMap::from([(Dead, 5)]), ..healthy("hooks") };
        let mut shown = [healthy("fine"), few, misspelt, away, sick()];
        let mut outages = Outages::default();
        outages.watch(&mut shown);
        assert_eq!(shown[3].away_for, None, "it has just been noticed");
        outages.watch(&mut shown);
        shown[3].away_for = shown[3].away_for.map(|_| Duration::from_secs(90));
        let told = problems(&shown);
        assert_eq!(told[0].text, "orders: the database does not answer, for 1m30s: Connection refused");
        assert_eq!(told[0].command.as_deref(), Some("relay check --pipeline orders"));
        assert_eq!((told.len(), told[1].command.as_ref()), (2, None), "{told:?}");
        let names: Vec<&str> = worst_first(&shown).into_iter().map(|of| of.pipeline.as_str()).collect();
        assert_eq!(names, ["orders", "ordres", "shipping", "hooks", "fine"]);
        shown[3].state = PipelineState::Leading;
        outages.watch(&mut shown);
        assert!(outages.0.is_empty(), "it answers again");
    }

    /// Goal: the order is that of the page, and does not change while the output of `--watch` is
    /// read. Oracle: the order of pipelines in which more messages wait, or for longer, and of
    /// those that are fine.
    #[test]
    fn pipelines_are_in_the_order_of_the_page() {
        let retries = |name: &str, number, seconds| PipelineStatus {
            exceptions: BTreeMap::from([(Retrying, number)]),
            exceptions_age_seconds: BTreeMap::from([(Retrying, seconds)]),
            ..healthy(name)
        };
        let more = retries("more", 45, 60.0);
        let shown = [healthy("quiet"), healthy("fine"), more, retries("older", 44, 600.0)];
        let names: Vec<&str> = worst_first(&shown).into_iter().map(|of| of.pipeline.as_str()).collect();
        assert_eq!(names, ["older", "more", "fine", "quiet"]);
    }

    /// Goal: the line about an open transaction leads to its end, whatever this role may see.
    #[test]
    fn an_open_transaction_comes_with_the_statement_that_ends_it() {
        let blocker = outbox_log::admin::Blocker::Session {
            pid: 22_250,
            transaction: String::from("100"),
            application_name: String::from("t35-batch"),
            state: None,
            age: None,
        };
        let lines = reasons(&PipelineStatus { held_back_by: Some(blocker), ..healthy("billing") }, None);
        assert_eq!(lines[1], "  relay doctor --problems --pipeline billing");
        let statement = "SELECT pg_terminate_backend(22250)";
        assert_eq!(lines[2], format!("  as a last resort, which rolls its work back: {statement}"));
    }

    #[test]
    fn messages_that_nobody_leads_for_are_a_failure() {
        let shown = |state: PipelineState, age: Option<f64>, alone: f64| PipelineStatus {
            state,
            oldest_pending_age_seconds: age,
            checkpoint_age_seconds: Some(alone),
            lease_ttl: Some(Duration::from_secs(15)),
            ..healthy("orders")
        };
        for (state, age, alone, expected) in [
            (PipelineState::Expired, Some(16.0), 16.0, Exit::Unavailable),
            (PipelineState::Idle, Some(16.0), 16.0, Exit::Unavailable),
            // A standby or the next process may come.
            (PipelineState::Idle, Some(14.0), 16.0, Exit::Success),
            (PipelineState::Idle, None, 16.0, Exit::Success),
            // Far behind, and handed over recently.
            (PipelineState::Idle, Some(300.0), 0.2, Exit::Success),
            (PipelineState::Leading, Some(16.0), 16.0, Exit::Success),
            (PipelineState::Leading, Some(300.0), 0.2, Exit::Success),
            // Its database renews the lease and stores no checkpoint.
            (PipelineState::Leading, Some(300.0), 61.0, Exit::Unavailable),
            (PipelineState::New, Some(16.0), 16.0, Exit::Success),
        ] {
            assert_eq!(exit(&shown(state, age, alone)), expected, "{state} {age:?} {alone}");
        }
    }

    #[test]
    fn a_paused_pipeline_is_a_failure_while_messages_wait() {
        let pause = PauseLine {
            pipeline: String::from("orders"),
            paused: PauseScope::Pipeline,
            actor: String::from("ann"),
            reason: String::from("migration"),
            since: time::OffsetDateTime::now_utc(),
            age: Duration::ZERO,
        };
        let paused = PipelineStatus { paused: vec![pause], ..healthy("orders") };
        assert_eq!(exit(&paused), Exit::Success, "nothing waits");
        let waiting = PipelineStatus { oldest_pending_id: Some(7), ..paused };
        assert_eq!(exit(&waiting), Exit::Unavailable);
    }

    #[test]
    fn a_pause_comes_with_the_command_that_ends_it() {
        let key = |key: &str| PauseScope::Key(key.to_owned());
        let pause = |paused| PauseLine {
            pipeline: String::from("orders"),
            paused,
            actor: String::from("ann"),
            reason: String::from("the broker\nis repaired"),
            since: time::OffsetDateTime::now_utc(),
            age: Duration::ZERO,
        };
        let pauses = [key("it's 7"), PauseScope::Pipeline, key("a\nb")].map(pause).to_vec();
        let lines = reasons(&PipelineStatus { paused: pauses, ..healthy("orders") }, None);
        assert_eq!(lines.len(), 6, "{lines:?}");
        assert!(
            lines[0].starts_with("orders: key it's 7 is paused by ann, for 0s: the broker\\nis repaired"),
            "{lines:?}"
        );
        assert!(
            lines[1].starts_with("  relay resume --key ")
                && lines[1].ends_with("--pipeline orders --note WHY")
        );
        let words = shlex::split(&lines[1]).unwrap();
        assert_eq!(words[3], "it's 7");
        assert_eq!(
            resume_command("orders", &key("-7")),
            "relay resume '--key=-7' --pipeline orders --note WHY"
        );
        assert_eq!(lines[3], "  relay resume --all --pipeline orders --note WHY");
        assert!(lines[4].starts_with("orders: key a\\nb is paused"), "{lines:?}");
        assert_eq!(lines[5], "  relay resume --key $'a\\nb' --pipeline orders --note WHY");
    }

    /// Goal: the command below a pause ends this pause. Oracle: the lines about a pause that keeps
    /// messages, which come first, and those about an older pause.
    #[test]
    fn a_pause_that_keeps_messages_comes_first_with_its_own_command() {
        let pause = |paused| PauseLine {
            pipeline: String::from("orders"),
            paused,
            actor: String::from("ann"),
            reason: String::from("migration"),
            since: time::OffsetDateTime::now_utc(),
            age: Duration::ZERO,
        };
        let pauses = [PauseScope::Key(String::from("7")), PauseScope::Pipeline].map(pause).to_vec();
        let paused = PipelineStatus { paused: pauses, oldest_pending_id: Some(9), ..healthy("orders") };
        let lines = reasons(&paused, None);
        assert_eq!(lines.len(), 4, "{lines:?}");
        assert_eq!(lines[1], "  relay resume --all --pipeline orders --note WHY");
        assert!(lines[2].starts_with("orders: key 7 is paused by ann"), "{lines:?}");
        assert_eq!(lines[3], "  relay resume --key 7 --pipeline orders --note WHY");
    }

    #[test]
    fn capped_counts_are_lower_bounds() {
        let capped = PipelineStatus { exceptions_are_at_least: true, ..sick() };
        assert_eq!(parked(&capped), "≥ 2009 dead, ≥ 41 held");
        assert!(
            reasons(&capped, None)[0].contains(": ≥ 2009 messages are dead"),
            "{:?}",
            reasons(&capped, None)
        );
    }
}
