//! Failures of held messages and redrives, in a consumer that holds keys: nothing is lost, nothing
//! overtakes, and no message blocks the others forever.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::time::Duration;

use crate::inbox::broker::Broker;
use crate::inbox::database::{Database, TestDatabase};
use crate::inbox::failures::{dead_letters, until};
use crate::inbox::held_keys::{
    Rejects, SOON, effects, holding, none_is_open, of, request, settled, signature, text, told,
};
use crate::inbox::runner::{Effect, builder, start};
use crate::inbox::{consumer, keyed, message, message_of};
use async_trait::async_trait;
use inbox::{
    AfterDeadLetter, Cause, Consumer, DeadLetter, Dialect, Handler, HandlerError, Inbox, PayloadComparison,
    Reason, RedriveError, RedriveOptions, Redriven, Refusal, Requested, Resolution, Tenant, Tx, UnknownKinds,
};
use message::{ContentType, Delivery, DeliveryToken, EventType, Message, OrderingKey};
use migrations::{Dialect as Name, Template};
use sqlx::Postgres;

tests::cases! { "inbox/held_redrives/{on}/{case}":
    every {
        a_held_message_waits_for_a_process_that_knows_its_kind,
        a_redrive_passes_no_earlier_dead_letter_where_keys_are_held,
        a_dead_letter_without_a_tenant_can_become_a_held_one,
        another_payload_under_the_id_of_a_message_is_not_a_held_copy,
        other_payloads_under_one_id_count_no_process_as_ended,
        a_held_message_whose_id_another_one_has_leaves_the_failures_of_that_one,
        a_message_whose_day_is_forgotten_is_not_held,
        a_held_message_is_compared_by_its_content,
        requests_that_cannot_be_read_block_no_others,
        processes_that_meet_at_held_messages_count_no_end,
        a_handler_without_a_time_limit_is_redriven,
    }
    on_postgres {
        a_requested_redrive_that_loses_a_conflict_is_tried_again_on_postgres,
        a_failure_after_the_handler_began_is_counted_and_ends_no_look_on_postgres,
        a_hung_statement_of_a_held_message_ends_with_its_handler_on_postgres,
        a_swallowed_error_is_the_messages_own_failure_on_postgres,
    }
}

async fn dead<DB: TestDatabase>(inbox: &Inbox<DB>, message: &Message, reason: Reason) {
    let delivery = Delivery {
        token: DeliveryToken(1),
        message: Ok(message.clone()),
        redelivered: false,
        origin: String::from("orders[3]@17"),
    };
    let cause = Cause::new(reason, String::from("held behind another"), 0);
    let proof = inbox.dead_letter(&consumer("billing"), &Tenant::none(), &delivery, cause).await.unwrap();
    assert_eq!(proof.subject(), message.id.as_uuid());
}

fn reasons(letters: &[DeadLetter]) -> Vec<(&str, &str)> {
    let mut reasons: Vec<_> = letters
        .iter()
        .map(|letter| (std::str::from_utf8(&letter.payload).unwrap(), letter.reason.as_str()))
        .collect();
    reasons.sort_unstable();
    reasons
}

async fn noted<DB: TestDatabase>(tx: &mut Tx<DB>, message: &Message) -> Result<(), HandlerError> {
    Ok(DB::apply(tx, "billing", message).await?)
}

/// Goal: requests for redrives that fail for their own reasons, in a number that would count as an
/// outage, do not block the requests behind them. Oracle: the effect of the last one.
async fn requests_that_cannot_be_read_block_no_others<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let payloads = ["0", "1", "2", "3", "4", "last"];
    let rejects = Rejects::these(payloads);
    let broker = Broker::new(payloads.map(message));
    let running = start(builder(&inbox, &broker, rejects.handler()));
    broker.drained().await;
    running.stop().await;
    let letters = dead_letters(&inbox).await;
    for payload in payloads {
        request(&inbox, of(&letters, payload)).await;
    }
    let place = database.schema.as_ref().map(|schema| format!("{schema}.")).unwrap_or_default();
    let last = of(&letters, "last").id;
    let unreadable = format!("UPDATE {place}inbox_dead_letter SET headers = '5' WHERE id <> '{last}'");
    let mut tx = database.admin.begin().await.unwrap();
    DB::sql(&mut tx, Box::leak(unreadable.into_boxed_str())).await.unwrap();
    tx.commit().await.unwrap();
    rejects.repair("last");
    let running = start(builder(&inbox, &broker, rejects.handler()).redrive_interval(SOON));
    until("the last one is redriven", async || effects(database).await == ["last"]).await;
    running.stop().await;
}

/// Oracle: the effects of a requested redrive, and of the message that its key held.
async fn a_handler_without_a_time_limit_is_redriven<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let rejects = Rejects::these(["first"]);
    settled(&inbox, &rejects, &["first", "held"]).await;
    rejects.repair("first");
    request(&inbox, of(&dead_letters(&inbox).await, "first")).await;
    let broker = Broker::new([]);
    let consumer = holding(&inbox, &broker, rejects.handler(), None).handler_timeout(Duration::MAX);
    let running = start(consumer);
    none_is_open(&inbox).await;
    running.stop().await;
    assert_eq!(effects(database).await, ["first", "held"]);
}

/// Goal: a process that does not know the kind of a held message leaves it alone, whatever it does
/// with deliveries of unknown kinds. Oracle: the process redrives another key behind it, and the
/// message takes effect in a process that knows it.
async fn a_held_message_waits_for_a_process_that_knows_its_kind<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let rules = [UnknownKinds::Refuse, UnknownKinds::Skip, UnknownKinds::Hold];
    for (round, rule) in rules.into_iter().enumerate() {
        let [first, held, known] = ["first", "held", "known"].map(|payload| format!("{payload} {round}"));
        let rejects = Rejects::these([&first]);
        settled(&inbox, &rejects, &[&first, &held]).await;
        let behind = Message { kind: EventType::new("order.noted").unwrap(), ..keyed("l", &known) };
        dead(&inbox, &behind, Reason::Held).await;
        let letters = dead_letters(&inbox).await;
        inbox.discard(of(&letters, &first).id, &signature()).await.unwrap();
        let broker = Broker::new([]);
        let source = broker.clone();
        let old = Consumer::builder(inbox.clone(), "billing")
            .subscribe(move || {
                let broker = source.clone();
                async move { Ok(broker.subscribe()) }
            })
            .on_message("order.noted", noted::<DB>)
            .unknown_kinds(rule)
            .after_dead_letter(AfterDeadLetter::HoldKey)
            .redrive_interval(SOON);
        let running = start(old);
        until("the other key had its turn", async || effects(database).await.contains(&known)).await;
        running.stop().await;
        let letters = dead_letters(&inbox).await;
        assert_eq!(reasons(&letters), [(held.as_str(), "held")], "{rule:?}");
        let running = start(holding(&inbox, &broker, Effect::works(), None));
        none_is_open(&inbox).await;
        running.stop().await;
        assert_eq!(effects(database).await.split_off(2 * round), [known, held]);
    }
}

/// Goal: where keys are held, no redrive that an operator requests overtakes an open dead letter of
/// its key, whatever the reasons are. Oracle: the effects, the audit.
async fn a_redrive_passes_no_earlier_dead_letter_where_keys_are_held<DB: TestDatabase>(
    database: &Database<DB>,
) {
    let inbox = database.inbox().await;
    let old = inbox.window().now - 20 * Duration::from_secs(86_400);
    let key = || OrderingKey::new("k").unwrap();
    let rejects = Rejects::these(["first"]);
    let broker = Broker::new(["first", "second"].map(|payload| message_of(old, payload).with_key(key())));
    let running = start(holding(&inbox, &broker, rejects.handler(), None));
    broker.drained().await;
    let letters = dead_letters(&inbox).await;
    assert_eq!(reasons(&letters), [("first", "too_old"), ("second", "too_old")]);
    let [first, second] = ["first", "second"].map(|payload| of(&letters, payload).id);
    let late = RedriveOptions::default().accept_late(true);
    let ask = async || {
        for letter in [first, second] {
            let requested = inbox.request_redrive(letter, late, &signature()).await.unwrap();
            assert_eq!(requested, Requested::Now);
        }
        let done = async || inbox.decisions(10.try_into().unwrap()).await.unwrap();
        until("both were carried out", async || done().await.iter().all(|one| one.subject.done_at.is_some()))
            .await;
    };
    ask().await;
    let outcomes: Vec<_> = inbox.decisions(2.try_into().unwrap()).await.unwrap();
    let told = |at: usize| outcomes[at].subject.outcome.clone().unwrap_or_default();
    assert!(told(1).contains("no such price"), "{}", told(1));
    assert!(told(0).contains(&format!("held behind dead letter {first}")), "{}", told(0));
    assert!(effects(database).await.is_empty());
    let holds = late.after_dead_letter(AfterDeadLetter::HoldKey);
    let refused = inbox.redrive(&consumer("billing"), second, &rejects.handler(), holds).await;
    assert!(matches!(refused, Err(RedriveError::Held { behind, .. }) if behind == first), "{refused:?}");
    rejects.repair("first");
    ask().await;
    none_is_open(&inbox).await;
    running.stop().await;
    assert_eq!(effects(database).await, ["first", "second"]);

    // A consumer that does not hold keys redrives in any order.
    let rejects = Rejects::these(["a", "b"]);
    let broker = Broker::new(["a", "b"].map(|payload| keyed("k", payload)));
    let running = start(builder(&inbox, &broker, rejects.handler()).redrive_interval(SOON));
    broker.drained().await;
    let letters = dead_letters(&inbox).await;
    rejects.repair("b");
    assert_eq!(request(&inbox, of(&letters, "b")).await, Requested::Now);
    until("it takes effect", async || effects(database).await.len() == 3).await;
    running.stop().await;
    assert_eq!(reasons(&dead_letters(&inbox).await), [("a", "rejected")]);
}

/// Goal: a message whose tenant was unknown when it died, and whose key is held when it is
/// redelivered, can be redriven. Oracle: it takes effect automatically.
async fn a_dead_letter_without_a_tenant_can_become_a_held_one<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let (before, behind) = (keyed("k", "before"), keyed("k", "behind"));
    dead(&inbox, &behind, Reason::NoTenant).await;
    dead(&inbox, &before, Reason::Rejected).await;
    dead(&inbox, &behind, Reason::Held).await;
    let letters = dead_letters(&inbox).await;
    assert_eq!(reasons(&letters), [("before", "rejected"), ("behind", "held")]);
    let letter = of(&letters, "behind");
    assert_eq!((letter.error.as_str(), letter.deliveries), ("held behind another", 2));
    // A dead letter with any other reason keeps its reason.
    dead(&inbox, &before, Reason::Held).await;
    assert_eq!(of(&dead_letters(&inbox).await, "before").reason, Reason::Rejected);
    inbox.discard(of(&letters, "before").id, &signature()).await.unwrap();
    let running = start(holding(&inbox, &Broker::new([]), Effect::works(), None));
    none_is_open(&inbox).await;
    running.stop().await;
    assert_eq!(effects(database).await, ["behind"]);
}

/// Goal: when two processes meet different payloads under one id at the same time, neither is lost.
/// Oracle: the second one is a dead letter with that reason, whether the first was handled or is
/// held; the failures of a held one still count.
async fn another_payload_under_the_id_of_a_message_is_not_a_held_copy<DB: TestDatabase>(
    database: &Database<DB>,
) {
    let inbox = database.inbox().await;
    let (applied, held) = (keyed("k", "applied"), keyed("k", "held"));
    let broker = Broker::new([applied.clone()]);
    let running = start(holding(&inbox, &broker, Effect::works(), None).redrive_interval(None));
    broker.drained().await;
    running.stop().await;
    dead(&inbox, &keyed("k", "before"), Reason::Rejected).await;
    dead(&inbox, &held, Reason::Held).await;
    let (billing, scope) = (consumer("billing"), Tenant::none());
    inbox.record_failure(&billing, &scope, held.id, "not yet", None).await.unwrap();
    let noted = inbox.attempt(&billing, &scope, held.id).await.unwrap();
    assert!(noted.is_some());
    for (first, other) in [(&applied, "other than applied"), (&held, "other than held")] {
        dead(&inbox, first, Reason::Held).await;
        dead(&inbox, &keyed("k", other).with_id(first.id), Reason::Held).await;
    }
    let letters = dead_letters(&inbox).await;
    let expected = [
        ("before", "rejected"),
        ("held", "held"),
        ("other than applied", "key_reused"),
        ("other than held", "key_reused"),
    ];
    assert_eq!(reasons(&letters), expected);
    assert!(of(&letters, "other than held").error.contains(&held.id.to_string()));
    assert_eq!(inbox.attempt(&billing, &scope, held.id).await.unwrap(), noted, "its failures still count");
}

/// Goal: a process that has refused a message has it in hand no longer, so the next one does not
/// count it as ended. Oracle: the reasons of deliveries with one id, each in a process of its own.
async fn other_payloads_under_one_id_count_no_process_as_ended<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let first = keyed("k", "0");
    let others = ["1", "2", "3", "4", "5", "6", "7"];
    for payload in std::iter::once("0").chain(others) {
        let broker = Broker::new([keyed("k", payload).with_id(first.id)]);
        let running = start(holding(&inbox, &broker, Effect::works(), None).redrive_interval(None));
        broker.drained().await;
        running.stop().await;
    }
    assert_eq!(effects(database).await, ["0"]);
    assert_eq!(reasons(&dead_letters(&inbox).await), others.map(|payload| (payload, "key_reused")));
}

/// Goal: a held message that is refused in its turn, because another message has its id, takes none
/// of that one's failures with it. Oracle: the failures before and after the turn.
async fn a_held_message_whose_id_another_one_has_leaves_the_failures_of_that_one<DB: TestDatabase>(
    database: &Database<DB>,
) {
    let inbox = database.inbox().await;
    let (billing, scope) = (consumer("billing"), Tenant::none());
    let held = keyed("k", "held");
    dead(&inbox, &keyed("k", "before"), Reason::Rejected).await;
    dead(&inbox, &held, Reason::Held).await;
    // The record under its id is that of a message from elsewhere, which has failed.
    let mut admin = database.admin.acquire().await.unwrap();
    let of_another = "UPDATE inbox_message SET dead_letter = NULL, source = '/elsewhere' WHERE dead_letter = \
        (SELECT id FROM inbox_dead_letter WHERE reason = 'held')";
    DB::sql(&mut admin, of_another).await.unwrap();
    drop(admin);
    inbox.record_failure(&billing, &scope, held.id, "not yet", None).await.unwrap();
    let noted = inbox.attempt(&billing, &scope, held.id).await.unwrap();
    assert!(noted.is_some());
    inbox.discard(of(&dead_letters(&inbox).await, "before").id, &signature()).await.unwrap();
    let broker = Broker::new([]);
    let running = start(holding(&inbox, &broker, Effect::works(), None));
    let is_refused = async || reasons(&dead_letters(&inbox).await) == [("held", "key_reused")];
    until("its turn is over", is_refused).await;
    running.stop().await;
    assert_eq!(inbox.attempt(&billing, &scope, held.id).await.unwrap(), noted, "its failures still count");
}

/// Goal: a message that cannot be held with an inbox row is not redriven automatically, because it
/// may have taken effect. Oracle: it waits for an operator's decision.
async fn a_message_whose_day_is_forgotten_is_not_held<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let old = inbox.window().now - 90 * Duration::from_secs(86_400);
    let gone = message_of(old, "gone").with_key(OrderingKey::new("k").unwrap());
    dead(&inbox, &gone, Reason::Held).await;
    let letters = dead_letters(&inbox).await;
    assert_eq!(reasons(&letters), [("gone", "too_old")]);
    assert_eq!(letters[0].error, "its day was deleted before it could be held behind another");
    let (billing, works) = (consumer("billing"), Effect::works());
    let redrive = async |options| inbox.redrive(&billing, letters[0].id, &works, options).await;
    let refused = redrive(RedriveOptions::default()).await;
    assert!(matches!(refused, Err(RedriveError::Refused(Refusal::TooOld { .. }))), "{refused:?}");
    let accepted = redrive(RedriveOptions::default().accept_late(true)).await;
    assert_eq!(accepted.unwrap(), Redriven::Now(Resolution::AppliedLate));
}

/// Goal: where JSON is compared by its content, a copy of a dead message in another spelling is
/// recognised. Oracle: no dead letter reports a reused id, before or after the redrive.
async fn a_held_message_is_compared_by_its_content<DB: TestDatabase>(database: &Database<DB>) {
    let options = database.options().payloads(PayloadComparison::CanonicalJson);
    let inbox = Inbox::<DB>::open(database.pool.clone(), options).await.unwrap();
    let json = |payload| Message { content_type: ContentType::json(), ..keyed("k", payload) };
    let (first, held) = (json(r#"{"a":1,"b":1}"#), json(r#"{"a":1,"b":2}"#));
    let again = [json(r#"{"b":1,"a":1}"#).with_id(first.id), json(r#"{"b":2,"a":1}"#).with_id(held.id)];
    let rejects = Rejects::these([text(&first.payload)]);
    let broker = Broker::new([first.clone(), held.clone()].into_iter().chain(again.clone()));
    let running = start(holding(&inbox, &broker, rejects.handler(), None));
    broker.drained().await;
    // As if another process had held it at the same time.
    dead(&inbox, &again[1], Reason::Held).await;
    let letters = dead_letters(&inbox).await;
    let both = [(text(&first.payload), "rejected"), (text(&held.payload), "held")];
    assert_eq!(told(&letters), both);
    rejects.repair(&text(&first.payload));
    assert_eq!(request(&inbox, of(&letters, &both[0].0)).await, Requested::Now);
    none_is_open(&inbox).await;
    again.into_iter().for_each(|copy| broker.send(Ok(copy)));
    broker.drained().await;
    running.stop().await;
    assert!(dead_letters(&inbox).await.is_empty());
    assert_eq!(effects(database).await, both.map(|(payload, _)| payload));
}

/// Runs SQL for a payload, waits, and then sends another message that succeeds. With `swallows`,
/// errors of the SQL are ignored.
struct Runs {
    sql: Vec<(&'static str, &'static str)>,
    waits: Duration,
    others: Broker,
    swallows: bool,
}

#[async_trait]
impl Handler<Postgres> for Runs {
    async fn handle(
        &self,
        tx: &mut Tx<Postgres>,
        message: &Message,
    ) -> Result<Option<Vec<u8>>, HandlerError> {
        <Postgres as TestDatabase>::apply(tx, "billing", message).await?;
        for (payload, sql) in &self.sql {
            if message.payload == payload.as_bytes() {
                let done = Postgres::sql(tx, sql).await;
                if !self.swallows {
                    done?;
                }
                tokio::time::sleep(self.waits).await;
                self.others.send(Ok(self::message("other")));
            }
        }
        Ok(None)
    }
}

/// Stores one held message for each of these keys, each first in its key.
async fn held_first<DB: TestDatabase + Dialect>(inbox: &Inbox<DB>, payloads: &[&str]) {
    for payload in payloads {
        dead(inbox, &keyed(payload, payload), Reason::Held).await;
    }
}

/// Goal: the database can end a held message's transaction after its handler began, because the
/// session was idle too long or its dead letter could not be closed. That counts as for a delivery,
/// and the consumer still processes the other keys. Oracle: the message is dead while others
/// succeed, and a key behind it takes effect.
async fn a_failure_after_the_handler_began_is_counted_and_ends_no_look_on_postgres(
    database: &Database<Postgres>,
) {
    let inbox = database.inbox().await;
    let place = database.schema.as_ref().unwrap();
    let refuse = "CREATE FUNCTION {place}.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
        IF OLD.payload = 'b' AND NEW.resolution IS NOT NULL THEN RAISE EXCEPTION 'lost' USING ERRCODE = '40001'; END IF; \
        RETURN NEW; END $$; \
        CREATE TRIGGER refuse BEFORE UPDATE ON {place}.inbox_dead_letter \
        FOR EACH ROW EXECUTE FUNCTION {place}.refuse()";
    let refuse = Template::new(refuse).identifier("place", place).render();
    sqlx::raw_sql(&refuse).execute(&database.admin).await.unwrap();
    held_first(&inbox, &["a", "b", "c"]).await;
    let broker = Broker::new([]);
    let handler = Runs {
        sql: vec![("a", "SET LOCAL idle_in_transaction_session_timeout = '1ms'"), ("b", "SELECT 1")],
        waits: Duration::from_millis(50),
        others: broker.clone(),
        swallows: false,
    };
    let holding = holding(&inbox, &broker, Effect::works(), None).handler(handler).attempts_max(3);
    let running = start(holding);
    until("both are dead", async || {
        reasons(&dead_letters(&inbox).await) == [("a", "poison"), ("b", "poison")]
    })
    .await;
    broker.drained().await;
    running.stop().await;
    let letters = dead_letters(&inbox).await;
    assert!(letters.iter().all(|letter| letter.attempts == 3), "{letters:?}");
    assert!(of(&letters, "b").error.contains("lost"), "{}", of(&letters, "b").error);
    assert!(effects(database).await.contains(&String::from("c")));
}

/// Goal: the server cancels the statement of a held message whose handler was ended, so that the
/// next attempt finds the dead letter unlocked. Oracle: the dead letter and the server's sessions,
/// while the statement would take an hour.
async fn a_hung_statement_of_a_held_message_ends_with_its_handler_on_postgres(database: &Database<Postgres>) {
    let inbox = database.inbox().await;
    held_first(&inbox, &["a"]).await;
    let broker = Broker::new([]);
    let handler = Runs {
        sql: vec![("a", "SELECT pg_sleep(3601)")],
        waits: Duration::ZERO,
        others: broker.clone(),
        swallows: false,
    };
    let holding = holding(&inbox, &broker, Effect::works(), None).handler(handler).attempts_max(2);
    // Long enough for the work before the statement. If that work takes longer, the handler is
    // ended during it, and the dead letter is the same.
    let running = start(holding.handler_timeout(Duration::from_secs(1)));
    until("it is dead", async || dead_letters(&inbox).await[0].reason == Reason::Poison).await;
    running.stop().await;
    let letter = &dead_letters(&inbox).await[0];
    assert!(letter.attempts == 2 && letter.error.contains("did not finish within"), "{letter:?}");
    let sleeping = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(3601)%' AND state = 'active' \
        AND pid <> pg_backend_pid()";
    let sleeping: i64 = sqlx::query_scalar(sleeping).fetch_one(&database.admin).await.unwrap();
    assert_eq!(sleeping, 0);
}

/// Goal: a handler that continues after a failed statement is stopped at the maximum of attempts,
/// even when nothing else succeeds. This holds for a delivery and for a held message. Oracle: the
/// dead letters.
async fn a_swallowed_error_is_the_messages_own_failure_on_postgres(database: &Database<Postgres>) {
    let inbox = database.inbox().await;
    held_first(&inbox, &["a"]).await;
    let broker = Broker::new([message("b")]);
    let handler = Runs {
        sql: vec![("a", "SELECT 1 / 0"), ("b", "SELECT 1 / 0")],
        waits: Duration::ZERO,
        // No other message arrives.
        others: Broker::new([]),
        swallows: true,
    };
    let holding = holding(&inbox, &broker, Effect::works(), None).handler(handler).attempts_max(3);
    let running = start(holding);
    until("both are dead", async || {
        reasons(&dead_letters(&inbox).await) == [("a", "poison"), ("b", "poison")]
    })
    .await;
    running.stop().await;
    assert!(dead_letters(&inbox).await.iter().all(|letter| letter.attempts == 3));
}

/// Runs statements as the administrator. `{place}` stands for the schema, with a dot.
async fn administer<DB: TestDatabase>(database: &Database<DB>, statements: &[&str]) {
    let place = database.schema.as_ref().map(|schema| format!("{schema}.")).unwrap_or_default();
    let mut tx = database.admin.begin().await.unwrap();
    for statement in statements {
        let statement = statement.replace("{place}", &place);
        DB::sql(&mut tx, Box::leak(statement.into_boxed_str())).await.unwrap();
    }
    tx.commit().await.unwrap();
}

/// Goal: processes that begin the same held messages at the same time do not count as ended.
/// Oracle: each message takes effect once, and a trigger that records counted ends has recorded
/// none.
async fn processes_that_meet_at_held_messages_count_no_end<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    match DB::DIALECT {
        Name::Sqlite => {
            let note = "CREATE TRIGGER note_end AFTER UPDATE ON inbox_attempt WHEN NEW.ends > OLD.ends \
                BEGIN INSERT INTO effect (consumer, payload) VALUES ('ends', 'one'); END";
            administer(database, &[note]).await;
        }
        Name::Postgres => {
            let note = "CREATE FUNCTION {place}note_end() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN \
                INSERT INTO {place}effect (consumer, payload) VALUES ('ends', 'one'); RETURN NEW; END $$";
            let trigger = "CREATE TRIGGER note_end AFTER UPDATE ON {place}inbox_attempt FOR EACH ROW \
                WHEN (NEW.ends > OLD.ends) EXECUTE FUNCTION {place}note_end()";
            administer(database, &[note, trigger]).await;
        }
    }
    let mut payloads: Vec<String> = (0..60).map(|n| format!("k{n:02}")).collect();
    for payload in &payloads {
        dead(&inbox, &keyed(payload, payload), Reason::Held).await;
    }
    let broker = Broker::new([]);
    let start = || start(holding(&inbox, &broker, Effect::works(), None));
    let running: Vec<_> = (0..3).map(|_| start()).collect();
    none_is_open(&inbox).await;
    for process in running {
        process.stop().await;
    }
    let mut applied = effects(database).await;
    applied.sort_unstable();
    payloads.sort_unstable();
    assert_eq!(applied, payloads);
    assert!(DB::effects(&database.admin, "ends").await.is_empty(), "an end was counted");
}

/// Goal: a redrive that an operator requested, and that loses to other transactions when it is
/// admitted and when it commits, is tried again. Oracle: one request leads to the effect, while the
/// first two of each are lost.
async fn a_requested_redrive_that_loses_a_conflict_is_tried_again_on_postgres(database: &Database<Postgres>) {
    let inbox = database.inbox().await;
    let lose = "CREATE FUNCTION {place}lose() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN \
        IF nextval(TG_ARGV[0]::regclass) <= 2 THEN RAISE EXCEPTION 'lost' USING ERRCODE = '40001'; END IF; \
        RETURN NEW; END $$";
    let at_admission = "CREATE TRIGGER lose BEFORE INSERT ON {place}inbox_message \
        FOR EACH ROW EXECUTE FUNCTION {place}lose('{place}admissions')";
    let at_commit = "CREATE CONSTRAINT TRIGGER lose AFTER UPDATE ON {place}inbox_dead_letter \
        DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.resolution IS NOT NULL) \
        EXECUTE FUNCTION {place}lose('{place}commits')";
    let sequences = ["CREATE SEQUENCE {place}admissions", "CREATE SEQUENCE {place}commits"];
    administer(database, &[sequences[0], sequences[1], lose, at_admission, at_commit]).await;
    // Without an inbox row, so that it is admitted when it is redriven.
    dead(&inbox, &message("late"), Reason::TooOld).await;
    let letters = dead_letters(&inbox).await;
    assert_eq!(request(&inbox, of(&letters, "late")).await, Requested::Now);
    let running = start(builder(&inbox, &Broker::new([]), Effect::works()).redrive_interval(SOON));
    let decisions = async || inbox.decisions(10.try_into().unwrap()).await.unwrap();
    until("it is carried out", async || decisions().await.iter().all(|one| one.subject.done_at.is_some()))
        .await;
    running.stop().await;
    let decisions = decisions().await;
    let [decision] = &decisions[..] else { panic!("{decisions:?}") };
    assert_eq!(decision.subject.outcome.as_deref(), Some("applied"));
    assert_eq!(effects(database).await, ["late"]);
    assert!(dead_letters(&inbox).await.is_empty());
}
