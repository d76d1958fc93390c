//! The checks of leases: whether a relay leads, and relays that no process runs. A pipeline that
//! was renamed leaves one.

use std::time::Duration;

use outbox_log::LogError;
use outbox_log::admin::{Holder, RelayStatus};
use tokio::time::timeout;

use super::report::{CheckState, Finding};
use super::text::age;
use crate::PipelineConfig;

const NAME: &str = "relays";
const LEADER: &str = "leader";
const DATABASE: &str = "database";

/// Checks the lease of a pipeline, and the other relays of its outbox. Returns nothing if the
/// database does not answer, which another check reports. Cancel-safe.
pub(super) async fn look(pipeline: &PipelineConfig, limit: Duration) -> Vec<Finding> {
    let Ok(Ok(relays)) = timeout(limit, relays(pipeline)).await else { return Vec::new() };
    let name = pipeline.name.as_str();
    let own = relays.iter().find(|relay| relay.relay == name);
    let leads = leader(own.map(|relay| relay.holder.as_ref()), pipeline.settings.lease_ttl);
    vec![leads, check(name, &relays.iter().map(Known::from).collect::<Vec<_>>())]
}

/// Checks whether a relay leads: the holder of its lease; the outer `None` if none has ever led.
fn leader(holder: Option<Option<&Holder>>, lease_ttl: Duration) -> Finding {
    let Some(holder) = holder else {
        return Finding::pass(LEADER, DATABASE, "no relay has led yet");
    };
    let Some(holder) = holder else {
        let measured = "no relay leads: the last one has released its lease";
        return Finding::warn(LEADER, DATABASE, measured, "start a relay with this pipeline");
    };
    let name = &holder.name;
    if let Some(left) = holder.expires_in {
        return Finding::pass(LEADER, DATABASE, format!("{name} leads, its lease ends in {}", age(left)));
    }
    let over = holder.expired_for.unwrap_or_default();
    let measured = format!("no relay leads: the lease of {name} has been over for {}", age(over));
    if over <= lease_ttl {
        return Finding::pass(LEADER, DATABASE, measured);
    }
    let remedy = "no other relay has taken over: start one with this pipeline. If one runs, it cannot store \
                  its lease in this database, and its log has the error (could not take the lease, could \
                  not renew the lease): a disk without room, a missing right, a trigger";
    Finding::fail(LEADER, DATABASE, measured, remedy)
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
        return Finding::pass(NAME, DATABASE, "a process runs every other relay of this outbox");
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
    Finding::unless(NAME, DATABASE, measured, Some((CheckState::Warn, remedy.to_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: `relay status` says that no relay leads and sends to the doctor, which says where to
    /// look. Oracle: the states and the remedy, for a holder, a lease that is over for long or
    /// since a moment, a released one, and a new pipeline.
    #[test]
    fn a_lease_that_is_over_fails_and_says_where_to_look() {
        const TTL: Duration = Duration::from_secs(15);
        let holder = |expires_in: Option<u64>, expired_for: Option<u64>| Holder {
            name: String::from("vm:7:e2"),
            expires_in: expires_in.map(Duration::from_secs),
            expired_for: expired_for.map(Duration::from_secs),
        };
        let of = |holder: &Holder| leader(Some(Some(holder)), TTL);
        let leads = of(&holder(Some(13), None));
        assert!(leads.state == CheckState::Pass && leads.measured.contains("vm:7:e2 leads"), "{leads:?}");
        assert_eq!(of(&holder(None, Some(2))).state, CheckState::Pass, "a standby may be on its way");
        let over = of(&holder(None, Some(67)));
        assert!(over.state == CheckState::Fail && over.measured.contains("for 1m7s"), "{over:?}");
        assert!(over.remedy.unwrap().contains("could not take the lease"));
        assert_eq!(leader(Some(None), TTL).state, CheckState::Warn);
        assert_eq!(leader(None, TTL).state, CheckState::Pass);
    }

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
