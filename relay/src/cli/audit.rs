//! `relay audit`: who decided what, when and why, from every audit.

use std::num::NonZeroU32;

use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser};
use operate::audit::{self, ACTIONS, AuditFilter, AuditLine, AuditQuery, Audited, REDRIVE};
use operate::export::{AuditExport, ExportFormat};
use operate::replay::Moment;
use operate::{NamedTables, Places, seconds};
use time::OffsetDateTime;

use super::exit::Exit;
use super::export::{Export, Exporting};
use super::failure::Failure;
use super::hint;
use super::operator::viewer;
use super::output::{Format, Table, or_dash};
use super::places::Where;
use super::progress::during;

/// The arguments of `relay audit`.
#[derive(Debug, Args)]
pub struct Audit {
    #[command(flatten)]
    place: Where,

    /// Only decisions of this operator.
    #[arg(long, value_name = "NAME")]
    actor: Option<String>,

    /// Only this action: requeue, discard, edit, pause, resume, replay, payload, …
    #[arg(long, value_name = "ACTION", value_parser = actions())]
    action: Option<String>,

    /// Only decisions about messages of this topic, or about the topic. Messages are found as long
    /// as the log keeps them. Views of payloads and replays by id, by key or of everything name no
    /// topic, so they are left out: select them with --action.
    #[arg(long, value_name = "TOPIC")]
    topic: Option<String>,

    /// Only decisions at this time or later: an age (2h, 7d) by the clock of this machine, or a
    /// time.
    #[arg(long, value_name = "TIME")]
    from: Option<Moment>,

    /// Only decisions at this time or earlier.
    #[arg(long, value_name = "TIME")]
    to: Option<Moment>,

    /// Print one line per message instead of one line per decision.
    #[arg(long)]
    each: bool,

    /// Maximum number of lines.
    #[arg(long, value_name = "COUNT", default_value = "100")]
    limit: NonZeroU32,

    #[command(flatten)]
    export: Export,
}

/// Returns the actions to choose from. The former word for the requeue of a dead letter is still
/// accepted.
fn actions() -> PossibleValuesParser {
    let shown = ACTIONS.into_iter().map(PossibleValue::new);
    PossibleValuesParser::new(shown.chain([PossibleValue::new(REDRIVE).hide(true)]))
}

impl Audit {
    pub(crate) async fn execute(self, format: Format) -> Result<Exit, Failure> {
        let filter = self.filter();
        filter.check()?;
        let tables = self.place.tables()?;
        let places = self.place.open().await?;
        if let Some(file) = self.export.format() {
            return self.exported(places, tables, filter, file).await;
        }
        let query = AuditQuery { filter, is_each: self.each, limit: self.limit };
        let audited = during("reading", audit::read(&places, &tables, &viewer(), &query)).await;
        places.close().await;
        print(audited?, !query.filter.is_empty(), format)
    }

    async fn exported(
        &self,
        places: Places,
        tables: Vec<NamedTables>,
        filter: AuditFilter,
        format: ExportFormat,
    ) -> Result<Exit, Failure> {
        let export = AuditExport::new(places, tables, &viewer(), filter, self.each, format)?;
        Exporting::Audit(Box::new(export)).print().await
    }

    fn filter(&self) -> AuditFilter {
        let now = OffsetDateTime::now_utc();
        AuditFilter {
            actor: self.actor.clone(),
            action: self.action.clone(),
            topic: self.topic.clone(),
            from: self.from.map(|from| from.at(now)),
            to: self.to.map(|to| to.at(now)),
        }
    }
}

/// Prints decisions. Those of places that answered are printed before the others fail the command.
pub(super) fn print(audited: Audited, is_filtered: bool, format: Format) -> Result<Exit, Failure> {
    let Audited { lines, away, left_out, searched_back_to } = audited;
    let nothing = match (away.is_empty(), is_filtered) {
        (false, _) => "no decisions found, but not every database answered",
        (true, true) => "no decision matches",
        (true, false) => "no decisions yet",
    };
    format.print(&lines, |lines| if lines.is_empty() { nothing.to_owned() } else { table(lines) })?;
    if let Some(at) = searched_back_to {
        let at = seconds::text(at);
        let all = hint::completed("`relay audit --export csv`");
        note!("decisions before {at} were not all searched: {all} has them all");
    }
    if !left_out.is_empty() {
        note!("{left_out}");
    }
    let away = away.into_iter().map(Failure::from).fold(None, super::failure::first);
    away.map_or(Ok(Exit::Success), Err)
}

fn table(lines: &[AuditLine]) -> String {
    let rows = lines.iter().map(|line| {
        [
            seconds::text(line.at),
            line.actor.clone(),
            line.action.clone(),
            line.source.to_string(),
            line.owned(),
            or_dash(line.subject()),
            or_dash(line.outcome.as_ref()),
            or_dash(line.selection.as_ref()),
            line.note.clone(),
        ]
    });
    Table::new(["at", "actor", "action", "source", "of", "id", "outcome", "selection", "note"], rows)
        .optional(&["source", "selection", "of", "outcome"])
        .cut("note")
        .shown()
}

#[cfg(test)]
mod tests {
    use super::super::help;

    #[test]
    fn the_former_word_for_a_requeue_is_accepted_and_not_offered() {
        let mut command = help::command();
        let read = |line: &str| help::command().try_get_matches_from(line.split(' '));
        assert!(read("relay audit --action redrive").is_ok() && read("relay audit --action requeue").is_ok());
        assert!(read("relay audit --action reqeue").is_err());
        command.build();
        let help = command.find_subcommand_mut("audit").unwrap().render_long_help().to_string();
        assert!(help.contains("requeue") && !help.contains("redrive"), "{help}");
    }
}
