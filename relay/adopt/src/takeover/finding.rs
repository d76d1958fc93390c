//! The doctor's check of an old table whose rows are handed over to the outbox.

use std::time::Duration;

use operate::doctor::Finding;
use operate::tables::Tables;
use operate::{Operator, PipelineConfig, Role};
use tokio::time::timeout;

use super::{AdoptState, AdoptStatus, OldTable, status};
use crate::adoption::Adoption;

/// The name of the check.
const NAME: &str = "adopted-table";
/// Time limit for all queries together.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// Checks that new rows of a pipeline's old table are handed over. Cancel-safe.
pub async fn finding(pipeline: &PipelineConfig, adoption: &Adoption) -> Finding {
    let subject = format!("table {}", adoption.table_name());
    let Ok(url) = pipeline.database.url() else {
        let remedy = "set the pipeline's database URL";
        return Finding::unknown(NAME, subject, "the database has no URL", remedy);
    };
    let tables = Tables::new(url, pipeline.database.options().clone());
    let old = OldTable { pipeline: pipeline.name.clone(), adoption: adoption.clone(), tables };
    let doctor = Operator::new("the doctor", Role::Viewer);
    match timeout(TIME_LIMIT, status(&old, &doctor)).await {
        Ok(Ok(status)) => check(&status, subject),
        Ok(Err(error)) => {
            let remedy = "run `relay adopt status --database URL` with the URL of a user that may read the \
                          table";
            Finding::unknown(NAME, subject, error.to_string(), remedy)
        }
        Err(_) => {
            let measured = format!("no answer within {} s", TIME_LIMIT.as_secs());
            Finding::unknown(NAME, subject, measured, "check the server and its locks")
        }
    }
}

/// Checks that each new row is handed over, for every role that inserts. A table that is not
/// adopted yet is only a warning: a migration begins with a working relay.
fn check(status: &AdoptStatus, subject: String) -> Finding {
    let AdoptStatus { state, problem, lacking, waiting, .. } = status;
    let measured = match waiting {
        Some(rows) if *rows > 0 => format!("{}, {rows} rows are waiting for the old relay", state.as_str()),
        _ => state.as_str().to_owned(),
    };
    let remedy = problem.clone().unwrap_or_else(|| String::from("see `relay adopt status`"));
    let is_handed_over = !matches!(state, AdoptState::NotAdopted | AdoptState::Disabled);
    if let Some(first) = lacking.first().filter(|_| is_handed_over) {
        let measured =
            format!("{measured}; inserts fail for {} roles, the first is {}", lacking.len(), first.role);
        return Finding::fail(NAME, subject, measured, first.remedy.clone());
    }
    match state {
        AdoptState::Adopted if waiting.is_none_or(|rows| rows == 0) => Finding::pass(NAME, subject, measured),
        AdoptState::Adopted | AdoptState::NotAdopted => Finding::warn(NAME, subject, measured, remedy),
        AdoptState::Disabled | AdoptState::Differs | AdoptState::Broken => {
            Finding::fail(NAME, subject, measured, remedy)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::LackingRole;
    use super::*;
    use operate::doctor::CheckState;

    fn status(state: AdoptState, waiting: Option<i64>, lacking: Vec<LackingRole>) -> AdoptStatus {
        AdoptStatus {
            pipeline: String::from("orders"),
            table: String::from("public.outbox"),
            state,
            problem: (state != AdoptState::Adopted).then(|| String::from("relay adopt over")),
            waiting,
            lacking,
            publication: None,
            slots: Vec::new(),
            also_published_by: Vec::new(),
        }
    }

    #[test]
    fn what_keeps_rows_from_the_outbox_is_told() {
        use AdoptState::{Adopted, Broken, Differs, Disabled, NotAdopted};
        let lacking = || vec![LackingRole { role: String::from("shop"), remedy: String::from("GRANT …") }];
        for (found, expected) in [
            (status(Adopted, None, Vec::new()), CheckState::Pass),
            (status(Adopted, Some(0), Vec::new()), CheckState::Pass),
            (status(Adopted, Some(3), Vec::new()), CheckState::Warn),
            (status(NotAdopted, Some(3), Vec::new()), CheckState::Warn),
            (status(Disabled, None, Vec::new()), CheckState::Fail),
            (status(Differs, None, Vec::new()), CheckState::Fail),
            (status(Broken, None, Vec::new()), CheckState::Fail),
            (status(Adopted, None, lacking()), CheckState::Fail),
            (status(NotAdopted, None, lacking()), CheckState::Warn),
        ] {
            let finding = check(&found, String::from("table public.outbox"));
            assert_eq!(finding.state, expected, "{finding:?}");
            assert_eq!(finding.remedy.is_some(), expected != CheckState::Pass, "{finding:?}");
        }
    }
}
