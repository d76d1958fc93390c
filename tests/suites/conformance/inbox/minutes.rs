//! The tables report duplicates as the consumers counted them.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::num::NonZeroUsize;
use std::time::Duration;

use super::broker::Broker;
use super::database::{Database, TestDatabase};
use super::dead_letters::store_dead_letter;
use super::runner::{Effect, builder, start};
use super::{keyed, message, message_of};
use inbox::{HandlerError, Reason};
use migrations::Dialect as Name;
use sqlx::Postgres;

tests::cases! { "inbox/minutes/{on}/{case}":
    every {
        duplicates_are_told_by_the_tables,
        a_rejected_message_was_not_applied,
        minutes_are_forgotten_after_a_day,
        activity_has_no_longest_period,
        a_consumer_that_is_hours_behind_is_seen_to_apply,
        an_idle_consumer_has_the_time_of_its_last_message,
        held_messages_are_counted_apart,
    }
    night every { many_dead_letters_of_a_consumer_hide_no_other }
    on_postgres { without_the_right_to_count_everything_else_goes_on_on_postgres }
}

const HOUR: Duration = Duration::from_secs(3_600);

/// Oracle: the rate after the stop of two consumers that share a row. One takes single messages,
/// the other batches.
async fn duplicates_are_told_by_the_tables<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    assert!(inbox.activity(HOUR).await.unwrap().is_empty());
    for batch in [None, NonZeroUsize::new(8)] {
        let messages: Vec<_> = (0..6).map(|number| message(&format!("{batch:?} {number}"))).collect();
        let broker = Broker::new(messages.iter().flat_map(|message| vec![message.clone(); 4]));
        let builder = builder(&inbox, &broker, Effect::works());
        let running = start(match batch {
            Some(batch) => builder.batch(batch),
            None => builder,
        });
        broker.drained().await;
        running.stop().await;
    }
    let all = inbox.activity(HOUR).await.unwrap();
    assert_eq!(all.len(), 1);
    assert_eq!((all[0].counted.applied, all[0].counted.duplicates), (12, 36), "{all:?}");
    assert_eq!(all[0].duplicate_rate(), Some(0.75));
}

/// Goal: an operator never reads that a consumer applies messages while it rejects all of them.
/// Oracle: a consumer whose only message is dead-lettered, and then one with an effect.
async fn a_rejected_message_was_not_applied<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    for (effect, applied) in
        [(Effect::new(|_, _| Err(HandlerError::reject("never"))), 0), (Effect::works(), 1)]
    {
        let broker = Broker::new([message(&format!("{applied}"))]);
        let running = start(builder(&inbox, &broker, effect));
        broker.drained().await;
        running.stop().await;
        let all = inbox.activity(HOUR).await.unwrap();
        assert_eq!((all[0].applied, all[0].dead), (applied, 1), "{all:?}");
        assert_eq!(all[0].last_applied_at.is_some(), applied > 0, "{all:?}");
    }
}

async fn activity_has_no_longest_period<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let broker = Broker::new([message("one")]);
    let running = start(builder(&inbox, &broker, Effect::works()));
    broker.drained().await;
    running.stop().await;
    let all = inbox.activity(Duration::MAX).await.unwrap();
    assert_eq!((all[0].applied, all[0].counted.applied), (1, 1), "{all:?}");
}

/// Goal: a consumer that works off a backlog of hours does not look idle. Oracle: the activity of
/// the last hour, after messages that were made before it.
async fn a_consumer_that_is_hours_behind_is_seen_to_apply<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let old = inbox.window().now - 3 * HOUR;
    let broker = Broker::new([message_of(old, "one"), message_of(old, "two")]);
    let running = start(builder(&inbox, &broker, Effect::works()));
    broker.drained().await;
    running.stop().await;
    let all = inbox.activity(HOUR).await.unwrap();
    assert_eq!(all[0].applied, 2, "{all:?}");
    let applied_at = all[0].last_applied_at.unwrap();
    assert!(inbox.window().now - applied_at < Duration::from_secs(600), "{all:?}");
}

/// Goal: an operator sees since when a consumer has applied nothing, although that was hours ago.
/// Oracle: the time of a minute that was stored three hours ago, and the counts of the last hour.
async fn an_idle_consumer_has_the_time_of_its_last_message<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let place = database.schema.as_ref().map(|schema| format!("{schema}.")).unwrap_or_default();
    let minute = |hours: u32| match DB::DIALECT {
        Name::Postgres => format!("date_trunc('minute', clock_timestamp() - interval '{hours} hours')"),
        Name::Sqlite => format!("(unixepoch() - {hours} * 3600) / 60 * 60000000"),
    };
    let (last, before) = (minute(3), minute(5));
    let rows = format!(
        "INSERT INTO {place}inbox_minute VALUES ('billing', {last}, 7, 1), ('billing', {before}, 9, 0)"
    );
    let mut tx = database.admin.begin().await.unwrap();
    DB::sql(&mut tx, rows.leak()).await.unwrap();
    tx.commit().await.unwrap();
    let all = inbox.activity(HOUR).await.unwrap();
    let [billing] = &all[..] else { panic!("{all:?}") };
    assert_eq!((billing.applied, billing.duplicate_rate()), (0, None), "{all:?}");
    let idle = inbox.window().now - billing.last_applied_at.unwrap();
    assert!(idle >= 3 * HOUR && idle < 4 * HOUR, "{all:?}");
}

/// Goal: a consumer whose dead letters reach the limit of the count hides none of the next
/// consumer's. Oracle: the counts, and the dead letters' earliest time.
async fn many_dead_letters_of_a_consumer_hide_no_other<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let broker = Broker::new([message("one")]);
    let running = start(builder(&inbox, &broker, Effect::new(|_, _| Err(HandlerError::reject("never")))));
    broker.drained().await;
    running.stop().await;
    let place = database.schema.as_ref().map(|schema| format!("{schema}.")).unwrap_or_default();
    let columns = "fingerprint, message_id, topic, key, kind, source, time, content_type, headers, \
         traceparent, tracestate, payload, reason, error, attempts, origin, dead_at";
    let id = match DB::DIALECT {
        Name::Postgres => "gen_random_uuid()",
        Name::Sqlite => "randomblob(16)",
    };
    let many = inbox::ACTIVITY_COUNTED_MAX + 5;
    let rows = format!(
        "INSERT INTO {place}inbox_dead_letter (id, consumer, scope, subject, {columns}) \
         WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < {many}) \
         SELECT {id}, 'alpha', d.scope, {id}, {columns} FROM n CROSS JOIN {place}inbox_dead_letter AS d"
    );
    let mut tx = database.admin.begin().await.unwrap();
    DB::sql(&mut tx, rows.leak()).await.unwrap();
    tx.commit().await.unwrap();
    let all = inbox.activity(HOUR).await.unwrap();
    let dead: Vec<_> = all.iter().map(|it| (&it.consumer[..], it.dead, it.dead_since.is_some())).collect();
    assert_eq!(dead, [("alpha", u64::from(inbox::ACTIVITY_COUNTED_MAX), true), ("billing", 1, true)]);
}

/// Goal: messages that wait behind a dead letter are not counted as dead. Oracle: the dead letters
/// that were stored, and the earliest time of those that are not held.
async fn held_messages_are_counted_apart<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    store_dead_letter(&inbox, &keyed("order-7", "[]"), Reason::Held).await;
    let all = inbox.activity(HOUR).await.unwrap();
    assert_eq!((all[0].dead, all[0].dead_since, all[0].held), (0, None, 1), "{all:?}");
    store_dead_letter(&inbox, &keyed("order-7", "{}"), Reason::Poison).await;
    let all = inbox.activity(HOUR).await.unwrap();
    assert_eq!((all[0].dead, all[0].dead_since.is_some(), all[0].held), (1, true, 1), "{all:?}");
}

async fn minutes_are_forgotten_after_a_day<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let mut tx = database.admin.begin().await.unwrap();
    let micros = |hours: i64| {
        let at = inbox.window().now - time::Duration::hours(hours);
        i64::try_from(at.unix_timestamp_nanos() / 1_000).unwrap()
    };
    for hours in [0, 23, 25] {
        let minute = match DB::DIALECT {
            Name::Postgres => format!("to_timestamp({}::numeric / 1000000)", micros(hours)),
            Name::Sqlite => micros(hours).to_string(),
        };
        let row = format!("INSERT INTO inbox_minute VALUES ('billing', {minute}, 1, 2)");
        DB::sql(&mut tx, row.leak()).await.unwrap();
    }
    tx.commit().await.unwrap();
    inbox.maintain().await.unwrap();
    let all = inbox.activity(48 * HOUR).await.unwrap();
    assert_eq!((all[0].counted.applied, all[0].counted.duplicates), (2, 4), "{all:?}");
}

/// Oracle: effects, maintenance and the other figures of a consumer whose role has no rights on the
/// new table.
async fn without_the_right_to_count_everything_else_goes_on_on_postgres(database: &Database<Postgres>) {
    let inbox = database.inbox().await;
    let mut tx = database.admin.begin().await.unwrap();
    let revoke = format!("REVOKE ALL ON inbox_minute FROM {}", tests::Role::Consumer.user());
    Postgres::sql(&mut tx, revoke.leak()).await.unwrap();
    tx.commit().await.unwrap();
    let one = message("one");
    let broker = Broker::new([one.clone(), one]);
    let running = start(builder(&inbox, &broker, Effect::works()));
    broker.drained().await;
    running.stop().await;
    inbox.maintain().await.unwrap();
    let all = inbox.activity(HOUR).await.unwrap();
    assert_eq!((all[0].applied, all[0].duplicate_rate()), (1, None), "{all:?}");
}
