//! One look at a relay: its state, its pauses, and the errors of parked entries.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;

use outbox_log::admin::{self, ERRORS_LOOKED_AT, Picture};
use outbox_log::{ExceptionChange, ExceptionState, LogOptions, PauseScope};

use crate::outbox::retention::{Relay, messages, parked};
use crate::outbox::support::{Database, TestDialect, relay, source};

cases! { "outbox/pictures":
    every {
        errors_are_counted_from_both_ends,
    }
}

/// Goal: an operator sees why messages are dead, at the same cost however many are. Oracle: the
/// errors of few entries, each counted once, and of more entries than are looked at.
async fn errors_are_counted_from_both_ends<DB: TestDialect>(db: &Database<DB>) {
    let look_at = 2 * ERRORS_LOOKED_AT as usize;
    let count = look_at + 200;
    db.enqueue(messages(i32::try_from(count).unwrap())).await;
    let mut main = Relay::new(db, &relay()).await;
    let entries = main.follower.all().await;
    assert_eq!(entries.len(), count);
    let park = |index: usize| {
        let state = if index == 1 { ExceptionState::Retrying } else { ExceptionState::Dead };
        let error = match index {
            0 | 1 => "x".repeat(400),
            // Between the two ends, once there are more.
            index if (ERRORS_LOOKED_AT as usize + 5..count - ERRORS_LOOKED_AT as usize).contains(&index) => {
                String::from("in the middle")
            }
            _ => String::from("no route"),
        };
        let error = (index != 2).then_some(error);
        ExceptionChange::Park(outbox_log::Parked { error, ..parked(&entries[index], state) })
    };
    let admin = admin::open(db.relay_url().as_str(), source(), LogOptions::default()).unwrap();
    let errors = |picture: &Picture| {
        let counted = picture.errors.iter().map(|of| ((of.state.as_str(), of.error.clone()), of.count));
        counted.collect::<BTreeMap<_, _>>()
    };

    main.pass(&(0..5).map(park).collect::<Vec<_>>()).await;
    admin.pause(&relay(), &PauseScope::Pipeline, "ann", "look first").await.unwrap();
    let picture = admin.picture(&relay()).await.unwrap();
    let long = "x".repeat(300);
    let expected =
        [(("dead", long.clone()), 1), (("dead", "no route".into()), 2), (("retrying", long.clone()), 1)];
    assert_eq!(errors(&picture), BTreeMap::from(expected));
    assert_eq!(picture.relay.map(|relay| relay.exceptions["dead"]), Some(4));
    assert_eq!(picture.pauses.iter().map(|pause| pause.reason.as_str()).collect::<Vec<_>>(), ["look first"]);

    main.pass(&(5..count).map(park).collect::<Vec<_>>()).await;
    let counted = errors(&admin.picture(&relay()).await.unwrap());
    assert!(!counted.contains_key(&("dead", "in the middle".into())), "{counted:?}");
    // One entry has no error.
    let dead: u64 = counted.iter().filter(|((state, _), _)| *state == "dead").map(|(_, count)| count).sum();
    assert_eq!(dead, look_at as u64 - 1);

    let unknown = outbox_log::RelayName::new("unknown").unwrap();
    let picture = admin.picture(&unknown).await.unwrap();
    assert!(picture.relay.is_none() && picture.errors.is_empty());
}
