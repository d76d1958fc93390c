//! The check for relays that no process runs: a pipeline that was renamed leaves one.

use std::time::Duration;

use outbox_log::LogError;
use outbox_log::admin::RelayStatus;
use tokio::time::timeout;

use super::report::{CheckState, Finding};
use crate::PipelineConfig;

const NAME: &str = "relays";

/// Checks the other relays of a pipeline's outbox. Returns `None` if the database does not answer,
/// which another check reports. Cancel-safe.
pub(super) async fn look(pipeline: &PipelineConfig, limit: Duration) -> Option<Finding> {
    let relays = timeout(limit, relays(pipeline)).await.ok()?.ok()?;
    Some(check(pipeline.name.as_str(), &relays.iter().map(Known::from).collect::<Vec<_>>()))
}

async fn relays(pipeline: &PipelineConfig) -> Result<Vec<RelayStatus>, LogError> {
    let options = pipeline.database.options().clone();
    let admin = outbox_log::admin::open(pipeline.database.address(), pipeline.source.clone(), options)?;
    admin.relays().await
}

/// A relay with a cursor in the outbox.
#[derive(Debug)]
struct Known<'a> {
    name: &'a str,
    /// Whether a process holds its lease.
    is_run: bool,
}

impl<'a> From<&'a RelayStatus> for Known<'a> {
    fn from(status: &'a RelayStatus) -> Self {
        let is_run = status.holder.as_ref().is_some_and(|holder| holder.expires_in.is_some());
        Self { name: &status.relay, is_run }
    }
}

fn check(own: &str, relays: &[Known<'_>]) -> Finding {
    let left: Vec<&str> =
        relays.iter().filter(|relay| !relay.is_run && relay.name != own).map(|relay| relay.name).collect();
    if left.is_empty() {
        return Finding::pass(NAME, "database", "a process runs every other relay of this outbox");
    }
    let measured = format!("no process runs {}", left.join(", "));
    let remedy = if relays.iter().any(|relay| relay.name == own) {
        "messages that they have not passed stay in the outbox: start them, or run relay forget for those \
         that will not return. If this pipeline was one of them under its former name, it has sent every \
         message again, and consumers refuse those copies (reason key_reused)"
    } else {
        "this pipeline has no cursor yet and will publish every message that the outbox still has, under its \
         own source: if it was one of them, give it its former name back before it runs"
    };
    Finding::unless(NAME, "database", measured, Some((CheckState::Warn, remedy.to_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relay_that_nobody_runs_is_told_and_a_new_name_before_it_runs() {
        let (old, new) =
            (Known { name: "orders", is_run: false }, Known { name: "shop-orders", is_run: true });
        assert_eq!(check("shop-orders", &[]).state, CheckState::Pass);
        assert_eq!(check("orders", &[old]).state, CheckState::Pass);
        let old = Known { name: "orders", is_run: false };
        let before = check("shop-orders", &[old]);
        assert!(before.remedy.unwrap().contains("before it runs") && before.measured.contains("orders"));
        let after = check("shop-orders", &[Known { name: "orders", is_run: false }, new]);
        assert!(after.state == CheckState::Warn && after.remedy.unwrap().contains("relay forget"));
    }
}
