//! One query of a relay: its state, its pauses, and the errors of parked entries.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use operate::held::{Held, held};
use operate::{Operator, Places, Role};
use outbox_log::admin::{self, ERRORS_LOOKED_AT, Picture};
use outbox_log::{EntryId, ExceptionChange, ExceptionState, LogOptions, PauseScope, RelayName};

use crate::outbox::retention::{Relay, messages, parked};
use crate::outbox::support::{Database, TestDialect, pipeline, relay, source};

tests::cases! { "outbox/pictures/{on}/{case}":
    every {
        errors_are_counted_from_both_ends,
        what_waits_is_examined_within_one_bound,
        held_entries_are_listed_in_the_order_of_ids,
    }
}

/// Goal: an operator sees why messages are dead, at a cost that does not depend on their number.
/// Oracle: the errors of few entries, each counted once, and those of more entries than one query
/// examines.
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
    assert_eq!(picture.relay.map(|relay| relay.exceptions[&ExceptionState::Dead]), Some(4));
    assert_eq!(picture.pauses.iter().map(|pause| pause.reason.as_str()).collect::<Vec<_>>(), ["look first"]);

    main.pass(&(5..count).map(park).collect::<Vec<_>>()).await;
    let counted = errors(&admin.picture(&relay()).await.unwrap());
    assert!(!counted.contains_key(&("dead", "in the middle".into())), "{counted:?}");
    // One entry has no error.
    let dead: u64 = counted.iter().filter(|((state, _), _)| *state == "dead").map(|(_, count)| count).sum();
    assert_eq!(dead, look_at as u64 - 1);

    let unknown = RelayName::new("unknown").unwrap();
    let picture = admin.picture(&unknown).await.unwrap();
    assert!(picture.relay.is_none() && picture.errors.is_empty());
}

/// Goal: the page of held keys costs the same, however many outboxes there are. Oracle: the
/// messages that are examined in two outboxes with 3,000 held ones each. The places are two relays
/// of one database.
async fn what_waits_is_examined_within_one_bound<DB: TestDialect>(db: &Database<DB>) {
    let other = RelayName::new("other").unwrap();
    for name in [&relay(), &other] {
        hold(db, name, 1..=3_000).await;
    }
    let place = |name: &RelayName| pipeline(name, &db.relay_url());
    let viewer = Operator::new("ann", Role::Viewer);
    let both = Places::new().outbox(&place(&relay())).outbox(&place(&other));
    let found = held(&both, &viewer).await.unwrap();
    let examined = |found: &Held, name: &RelayName| {
        let lines = found.keys.iter().filter(|line| line.pipeline == name.as_str());
        lines.map(|line| 1 + line.behind).sum::<u64>()
    };
    assert_eq!((found.examined_max, found.more), (2_500, true));
    assert_eq!([relay(), other].map(|name| examined(&found, &name)), [2_500, 2_500]);

    let found = held(&Places::new().outbox(&place(&relay())), &viewer).await.unwrap();
    assert_eq!((found.examined_max, found.more), (5_000, false));
    let first = found.keys.iter().find(|line| line.key.as_deref() == Some("key-7")).unwrap();
    assert_eq!((first.first.as_str(), first.behind, found.keys.len()), ("7", 99, 30));
}

/// Holds entries of 30 keys.
async fn hold<DB: TestDialect>(db: &Database<DB>, relay: &RelayName, ids: RangeInclusive<i64>) {
    let (first, last) = (ids.start(), ids.end());
    let cast = if DB::DIALECT == migrations::Dialect::Sqlite { "" } else { "::uuid" };
    let digits = "'000000000000' || n";
    db.run(&format!(
        "INSERT INTO outbox_exception (relay, id, message_id, topic, key, state) \
         WITH RECURSIVE counted(n) AS (SELECT {first} UNION ALL SELECT n + 1 FROM counted WHERE n < {last}) \
         SELECT '{relay}', n, ('00000000-0000-7000-8000-' || substr({digits}, length({digits}) - 11)){cast}, \
         'orders', 'key-' || (n % 30), 'held' FROM counted",
    ))
    .await;
}

/// Goal: a list of held entries has all of them in the order of the log, whether they are few, and
/// read by the index of their keys, or many. Oracle: the ids of all pages.
async fn held_entries_are_listed_in_the_order_of_ids<DB: TestDialect>(db: &Database<DB>) {
    let admin = admin::open(db.relay_url().as_str(), source(), LogOptions::default()).unwrap();
    for ids in [1..=120, 121..=2_500] {
        let last = *ids.end();
        hold(db, &relay(), ids).await;
        let mut listed = Vec::new();
        loop {
            let after = EntryId(listed.last().copied().unwrap_or_default());
            let page = admin.list(&relay(), ExceptionState::Held, after, 50).await.unwrap();
            if page.is_empty() {
                break;
            }
            listed.extend(page.iter().map(|entry| entry.id.0));
        }
        assert_eq!(listed, (1..=last).collect::<Vec<_>>());
    }
}
