//! The cases, which run on every driver.

use std::sync::{Arc, Barrier, Mutex, PoisonError};
use std::thread;

use libtest_mimic::{Failed, Trial};
use statements::message::token::Drift;
use statements::message::{Chunk, Committed, Event, Message, MessageId, SizeLimit};
use statements::{ConsumerName, Enqueued, Error, Failure, Inbox, NewMessage, Outbox, Outcome, Refused};
use time::{Duration, OffsetDateTime};

use crate::database::{self, invoices, letter, messages, order, orders};
use crate::driver::{Driver, Step};
use crate::vectors;

pub(crate) const ATTEMPTS_MAX: u32 = 3;

/// The header that `drivers::orders` does not set.
const RESERVED: &str = "ce_id";

macro_rules! trials {
    ($driver:ident: $($($case:ident)::+),+ $(,)?) => {
        vec![$({
            let name = stringify!($($case)::+).rsplit(':').next().unwrap_or_default().trim();
            Trial::test(format!("{}/{name}", $driver::NAME), || -> Result<(), Failed> {
                $($case)::+::<$driver>();
                Ok(())
            })
        }),+]
    };
}

/// Returns the trials of a driver.
pub(crate) fn trials<D: Driver>() -> Vec<Trial> {
    trials![D:
        an_enqueue_commits_with_its_transaction,
        an_enqueue_rolls_back_with_its_transaction,
        a_refused_message_has_the_text_of_the_library,
        a_refusal_that_is_ignored_does_not_commit_the_business_row,
        a_refusal_in_a_savepoint_takes_only_the_savepoint_back,
        an_error_of_the_database_that_is_ignored_is_noticed_before_the_commit,
        outside_a_transaction_nothing_is_enqueued,
        a_supplied_id_is_enqueued_once,
        an_id_that_is_used_for_another_message_is_refused,
        an_id_that_no_consumer_would_accept_is_refused,
        a_conflict_of_serializable_transactions_passes_when_run_again,
        a_redelivery_has_one_effect,
        two_racing_consumers_apply_once,
        two_racing_consumers_apply_once_in_serializable,
        a_handler_that_always_fails_becomes_a_dead_letter,
        a_rejected_message_is_a_dead_letter_at_once,
        an_error_that_a_handler_ignores_is_its_failure,
        a_refusal_that_a_handler_ignores_is_its_failure,
        a_transaction_that_a_handler_ends_is_no_proof,
        a_lost_connection_is_not_the_messages_failure,
        an_outage_is_not_the_messages_failure,
        a_message_that_the_inbox_refuses_is_a_dead_letter,
        a_redrive_takes_effect_once,
        an_inbox_is_maintained_and_a_retention_out_of_bounds_is_refused,
        vectors::derived_ids_and_fingerprints_are_those_of_the_clients,
        vectors::ids_that_clients_refuse_are_refused,
    ]
}

pub(crate) fn inbox<D: Driver>() -> Inbox {
    let name = ConsumerName::new(format!("billing-{}", D::NAME)).expect("a name");
    Inbox::new(name).attempts_max(ATTEMPTS_MAX)
}

fn placed(order: i64) -> drivers::orders::OrderPlaced {
    drivers::orders::OrderPlaced { order, customer: format!("customer-{order}"), cents: 1250 }
}

/// Returns the message of an order, as a consumer gets it.
pub(crate) fn delivered(order: i64) -> Message {
    let placed = placed(order);
    let payload = format!(r#"{{"order":{order},"customer":"{}","cents":1250}}"#, placed.customer);
    let kind = drivers::orders::OrderPlaced::KIND.parse().expect("a kind");
    let mut message = Message::new("orders".parse().expect("a topic"), kind, payload);
    message.key = Some(placed.customer.parse().expect("a key"));
    message.content_type = "application/json".parse().expect("a type");
    message
}

fn store(order: i64) -> Step {
    Step::sql(format!("INSERT INTO orders VALUES ({order}, 'customer-{order}', 1250)"))
}

fn enqueue(order: i64) -> Step {
    Step::Enqueue(NewMessage::event(&placed(order)))
}

pub(crate) fn bill(order: i64) -> Step {
    Step::sql(format!(
        "INSERT INTO invoice (message_id, order_id, customer, cents)
            VALUES (gen_random_uuid(), {order}, 'customer-{order}', 1250)"
    ))
}

fn run<D: Driver>(driver: &mut D, steps: &[Step]) -> Result<Vec<Enqueued>, Failure<D::Error>> {
    driver.transaction(false, &Outbox::new(), steps).map(|done| done.enqueued)
}

/// Returns the messages that break a rule, with a part of the library's text.
fn refused(order: i64) -> [(NewMessage, &'static str); 6] {
    let message = || NewMessage::event(&placed(order));
    [
        (message().topic("or ders"), "allowed are ASCII letters, digits and . _ - / : #"),
        (message().key("k".repeat(256)), "has 256 bytes; the limit is 255"),
        (message().header(RESERVED, "x"), "reserved"),
        (message().header("tenant", "a\nb"), "'\\n'"),
        (message().payload(vec![b'x'; 1_000_000]), "every broker takes at most 1000000"),
        (message().deliver_at(OffsetDateTime::now_utc() + Duration::days(15)), "none would apply it"),
    ]
}

fn an_enqueue_commits_with_its_transaction<D: Driver>() {
    let order = order();
    let enqueued = run(&mut D::connect(), &[store(order), enqueue(order), Step::Verify]).expect("committed");
    assert_eq!((orders(order), messages(order)), ("1".into(), "1".into()));
    let stored = database::text(&format!(
        "SELECT concat_ws(' ', topic, key, kind, content_type) FROM outbox_message WHERE message_id = '{}'",
        enqueued[0].id()
    ));
    assert_eq!(stored, format!("orders customer-{order} order.placed application/json"));
}

fn an_enqueue_rolls_back_with_its_transaction<D: Driver>() {
    let order = order();
    let failure =
        run(&mut D::connect(), &[store(order), enqueue(order), Step::Fail("no stock")]).unwrap_err();
    assert_eq!(failure.to_string(), "no stock");
    assert_eq!((orders(order), messages(order)), ("0".into(), "0".into()));
}

fn a_refused_message_has_the_text_of_the_library<D: Driver>() {
    let order = order();
    let mut driver = D::connect();
    for (message, text) in refused(order) {
        let failure = run(&mut driver, &[store(order), Step::Enqueue(message)]).unwrap_err();
        assert!(failure.to_string().contains(text), "{failure}");
        assert_eq!((orders(order), messages(order)), ("0".into(), "0".into()), "{failure}");
    }
    let huge = NewMessage::event(&placed(order)).payload(vec![b'x'; 2_000_000]);
    let outbox = Outbox::new().limit(SizeLimit::CHUNKED);
    let done = driver.transaction(false, &outbox, &[Step::Enqueue(huge)]).expect("a wider limit");
    assert_eq!(done.enqueued.len(), 1);
}

/// Oracle: whatever the driver says about the commit, neither row is there.
fn a_refusal_that_is_ignored_does_not_commit_the_business_row<D: Driver>() {
    let mut driver = D::connect();
    for (message, text) in refused(order()) {
        let order = order();
        let _ = run(&mut driver, &[store(order), Step::ignoring(Step::Enqueue(message))]);
        assert_eq!(orders(order), "0", "{text}");
        // The connection is usable afterwards.
        run(&mut driver, &[store(order), enqueue(order)]).expect("committed");
    }
}

fn a_refusal_in_a_savepoint_takes_only_the_savepoint_back<D: Driver>() {
    let kept = order();
    let lost = order();
    let bad = Step::Enqueue(NewMessage::event(&placed(lost)).header(RESERVED, "x"));
    let steps = [store(kept), Step::Within(vec![store(lost), bad]), enqueue(kept), Step::Verify];
    run(&mut D::connect(), &steps).expect("committed");
    assert_eq!((orders(kept), messages(kept)), ("1".into(), "1".into()));
    assert_eq!((orders(lost), messages(lost)), ("0".into(), "0".into()));
}

fn an_error_of_the_database_that_is_ignored_is_noticed_before_the_commit<D: Driver>() {
    let order = order();
    let ignored = Step::ignoring(Step::sql("SELECT 1 / 0"));
    let mut driver = D::connect();
    let steps = [store(order), enqueue(order), ignored, Step::Verify];
    assert!(matches!(run(&mut driver, &steps), Err(Failure::Error(Error::Database(_)))));
    let gone = Step::Within(vec![enqueue(order), Step::Fail("rolled back to the savepoint")]);
    let failure = run(&mut driver, &[store(order), gone, Step::Verify]).unwrap_err();
    let Failure::Error(error) = failure else { panic!("{failure}") };
    assert!(matches!(error.refused(), Some(Refused::Ended { .. })), "{error}");
    assert_eq!((orders(order), messages(order)), ("0".into(), "0".into()));
}

fn outside_a_transaction_nothing_is_enqueued<D: Driver>() {
    let order = order();
    if let Some(enqueued) = D::connect().enqueue_outside(NewMessage::event(&placed(order))) {
        assert!(matches!(enqueued, Err(Error::NoTransaction)), "{enqueued:?}");
    }
    assert_eq!(messages(order), "0");
}

fn a_supplied_id_is_enqueued_once<D: Driver>() {
    let order = order();
    let mut driver = D::connect();
    let id = MessageId::derived(OffsetDateTime::now_utc(), [D::NAME, &order.to_string()]).expect("an id");
    let message = |request: &str| {
        Step::Enqueue(NewMessage::event(&placed(order)).id(id).header("x-request-id", request))
    };
    let first = run(&mut driver, &[store(order), message("1"), Step::Verify]).expect("committed");
    let again = run(&mut driver, &[message("2"), Step::Verify]).expect("committed");
    assert!(!first[0].is_duplicate() && again[0].is_duplicate());
    assert_eq!(messages(order), "1");
}

fn an_id_that_is_used_for_another_message_is_refused<D: Driver>() {
    let first = order();
    let second = order();
    let mut driver = D::connect();
    let id = MessageId::new();
    let message = |order| Step::Enqueue(NewMessage::event(&placed(order)).id(id));
    run(&mut driver, &[store(first), message(first)]).expect("committed");
    let failure = run(&mut driver, &[store(second), message(second)]).unwrap_err();
    let text = failure.to_string();
    assert!(text.contains("was already enqueued with another kind, content type or payload"), "{text}");
    let _ = run(&mut driver, &[store(second), Step::ignoring(message(second))]);
    assert_eq!((orders(second), messages(second)), ("0".into(), "0".into()));
}

fn an_id_that_no_consumer_would_accept_is_refused<D: Driver>() {
    let order = order();
    let now = OffsetDateTime::now_utc();
    for (at, is_old) in [(now - Duration::days(15), true), (now + Duration::minutes(10), false)] {
        let id = MessageId::derived(at, [order.to_string()]).expect("an id");
        let message = Step::Enqueue(NewMessage::event(&placed(order)).id(id));
        let failure = run(&mut D::connect(), &[store(order), message]).unwrap_err();
        let Failure::Error(error) = failure else { panic!("{failure}") };
        let Some(Refused::Drift(drift)) = error.refused() else { panic!("{error}") };
        assert_eq!(matches!(**drift, Drift::TooOld { .. }), is_old, "{drift}");
    }
    assert_eq!(orders(order), "0");
}

/// Held by cases in SERIALIZABLE. Those of two drivers may conflict in pages that they share, which
/// is right but not what they test.
static SERIALIZABLE: Mutex<()> = Mutex::new(());

/// Goal: the caller runs a transaction again after 40001, and both messages are there once.
fn a_conflict_of_serializable_transactions_passes_when_run_again<D: Driver>() {
    let _turn = SERIALIZABLE.lock().unwrap_or_else(PoisonError::into_inner);
    let numbers = [order(), order()];
    let barrier = Arc::new(Barrier::new(2));
    let customer = format!("both-{}", D::NAME);
    let worker = |order: i64| {
        let read = Step::sql(format!("SELECT sum(cents) FROM orders WHERE customer = '{customer}'"));
        let store = Step::sql(format!("INSERT INTO orders VALUES ({order}, '{customer}', 1)"));
        let meet = Step::Meet(Arc::clone(&barrier));
        let steps = vec![read, store, enqueue(order)];
        thread::spawn(move || racing::<D>(meet, steps))
    };
    let workers = numbers.map(worker);
    let conflicts: u32 = workers.into_iter().map(|worker| worker.join().expect("no panic")).sum();
    assert!(conflicts >= 1, "the transactions did not conflict");
    for order in numbers {
        assert_eq!((orders(order), messages(order)), ("1".into(), "1".into()));
    }
}

/// Runs a transaction until it succeeds. The first run meets another one after its first step.
/// Returns how often another transaction was in the way.
fn racing<D: Driver>(meet: Step, steps: Vec<Step>) -> u32 {
    let mut driver = D::connect();
    let mut first = steps.clone();
    first.insert(1, meet);
    for conflicts in 0..10 {
        let steps = if conflicts == 0 { &first } else { &steps };
        match driver.transaction(true, &Outbox::new(), steps) {
            Ok(_) => return conflicts,
            Err(Failure::Error(error)) if D::is_passing(&error) => {}
            Err(failure) => panic!("{failure:?}"),
        }
    }
    panic!("it never succeeded")
}

fn a_redelivery_has_one_effect<D: Driver>() {
    let order = order();
    let message = delivered(order);
    let mut driver = D::connect();
    let inbox = inbox::<D>();
    let handler = [bill(order), enqueue(order)];
    let outcome = driver.apply(&inbox, &message, &handler).expect("applied");
    assert_eq!(outcome, Outcome::Applied(Committed::attest(message.id.as_uuid())));
    let outcome = driver.apply(&inbox, &message, &handler).expect("known");
    assert_eq!(outcome, Outcome::Known(Committed::attest(message.id.as_uuid())));
    assert_eq!((invoices(order), messages(order)), ("1".into(), "1".into()));
}

/// Returns what becomes of a message that two consumers get at the same time. The second one begins
/// while the first one's handler runs.
fn raced<D: Driver>(url: &str, message: &Message, order: i64) -> [Result<Outcome, Error<D::Error>>; 2] {
    let barrier = Arc::new(Barrier::new(2));
    let mut first = D::connect_to(url);
    let inbox = inbox::<D>();
    let slow = [bill(order), Step::Meet(Arc::clone(&barrier)), Step::sql("SELECT pg_sleep(0.5)")];
    thread::scope(|scope| {
        let first = scope.spawn(|| {
            let outcome = first.apply(&inbox, message, &slow);
            outcome.expect("applied")
        });
        let mut second = D::connect_to(url);
        barrier.wait();
        let second = second.apply(&inbox, message, &[bill(order)]);
        [Ok(first.join().expect("no panic")), second]
    })
}

fn two_racing_consumers_apply_once<D: Driver>() {
    let order = order();
    let message = delivered(order);
    let [first, second] = raced::<D>(database::url(), &message, order);
    assert!(matches!(first, Ok(Outcome::Applied(_))), "{first:?}");
    assert!(matches!(second, Ok(Outcome::Known(_))), "{second:?}");
    assert_eq!(invoices(order), "1");
}

fn two_racing_consumers_apply_once_in_serializable<D: Driver>() {
    let _turn = SERIALIZABLE.lock().unwrap_or_else(PoisonError::into_inner);
    let order = order();
    let message = delivered(order);
    let url = format!("{}?options=-c%20default_transaction_isolation%3Dserializable", database::url());
    let [first, second] = raced::<D>(&url, &message, order);
    assert!(matches!(first, Ok(Outcome::Applied(_))), "{first:?}");
    assert!(matches!(&second, Err(error) if D::is_passing(error)), "{second:?}");
    let mut driver = D::connect_to(&url);
    let inbox = inbox::<D>();
    let again = driver.apply(&inbox, &message, &[bill(order)]);
    assert!(matches!(again, Ok(Outcome::Known(_))), "{again:?}");
    assert_eq!(invoices(order), "1");
}

fn a_handler_that_always_fails_becomes_a_dead_letter<D: Driver>() {
    let order = order();
    let message = delivered(order);
    let mut driver = D::connect();
    let inbox = inbox::<D>();
    let handler = [bill(order), Step::Fail("the printer burns")];
    for attempts in 1..ATTEMPTS_MAX {
        let outcome = driver.apply(&inbox, &message, &handler).expect("counted");
        assert_eq!(outcome, Outcome::Again { attempts });
    }
    let outcome = driver.apply(&inbox, &message, &handler).expect("stored");
    assert_eq!(outcome, Outcome::DeadLetter(Committed::attest(message.id.as_uuid())));
    let outcome = driver.apply(&inbox, &message, &[bill(order)]).expect("known");
    assert!(matches!(outcome, Outcome::Known(_)), "{outcome:?}");
    let columns = letter(&message, "concat_ws('|', reason, attempts, key, kind, error, topic)");
    assert_eq!(columns, format!("poison|3|customer-{order}|order.placed|the printer burns|orders"));
    assert_eq!(invoices(order), "0");
}

fn a_rejected_message_is_a_dead_letter_at_once<D: Driver>() {
    let message = delivered(order());
    let mut driver = D::connect();
    let inbox = inbox::<D>();
    let outcome = driver.apply(&inbox, &message, &[Step::Reject("no such customer\0")]).expect("stored");
    assert!(matches!(outcome, Outcome::DeadLetter(_)), "{outcome:?}");
    assert_eq!(letter(&message, "concat_ws('|', reason, error)"), "rejected|no such customer\u{fffd}");
}

/// Goal: an effect that its COMMIT took back is never acknowledged.
fn an_error_that_a_handler_ignores_is_its_failure<D: Driver>() {
    let order = order();
    let message = delivered(order);
    let mut driver = D::connect();
    let inbox = inbox::<D>();
    let handler = [bill(order), Step::ignoring(Step::sql("SELECT 1 / 0"))];
    let outcome = driver.apply(&inbox, &message, &handler).expect("counted");
    assert_eq!(outcome, Outcome::Again { attempts: 1 });
    assert_eq!(invoices(order), "0");
    let outcome = driver.apply(&inbox, &message, &[bill(order)]).expect("applied");
    assert!(matches!(outcome, Outcome::Applied(_)), "{outcome:?}");
    assert_eq!(invoices(order), "1");
}

fn a_refusal_that_a_handler_ignores_is_its_failure<D: Driver>() {
    let order = order();
    let mut driver = D::connect();
    let inbox = inbox::<D>();
    for (message, text) in refused(order) {
        let handler = [bill(order), Step::ignoring(Step::Enqueue(message))];
        let outcome = driver.apply(&inbox, &delivered(order), &handler).expect("counted");
        assert_eq!(outcome, Outcome::Again { attempts: 1 }, "{text}");
        assert_eq!(invoices(order), "0", "{text}");
    }
}

/// Goal: a handler that commits by itself gets no proof of what follows.
fn a_transaction_that_a_handler_ends_is_no_proof<D: Driver>() {
    let order = order();
    let message = delivered(order);
    let mut driver = D::connect();
    let inbox = inbox::<D>();
    let handler = [Step::sql("COMMIT"), Step::sql("BEGIN"), bill(order)];
    let outcome = driver.apply(&inbox, &message, &handler);
    assert!(!matches!(outcome, Ok(Outcome::Applied(_) | Outcome::Known(_))), "{outcome:?}");
    assert_eq!(invoices(order), "0");
}

fn a_lost_connection_is_not_the_messages_failure<D: Driver>() {
    let order = order();
    let message = delivered(order);
    let mut driver = D::connect();
    let inbox = inbox::<D>();
    let handler = [bill(order), Step::sql("SELECT pg_terminate_backend(pg_backend_pid())")];
    let error = driver.apply(&inbox, &message, &handler).unwrap_err();
    assert!(D::is_passing(&error), "{error:?}");
    let attempts = format!("SELECT attempts::text FROM inbox_attempt WHERE message_id = '{}'", message.id);
    assert_eq!((invoices(order), database::text(&attempts)), ("0".into(), String::new()));
    let outcome = D::connect().apply(&inbox, &message, &[bill(order)]).expect("applied");
    assert!(matches!(outcome, Outcome::Applied(_)), "{outcome:?}");
}

/// Goal: what says nothing about a message (a full disk, a lock, an administrator) counts for none,
/// and what its statement is refused for does. Oracle: `inbox_attempt`, after a plain attempt.
fn an_outage_is_not_the_messages_failure<D: Driver>() {
    let order = order();
    let mut driver = D::connect();
    let inbox = inbox::<D>();
    let outages = [
        ("25006", "cannot execute INSERT in a read-only transaction"),
        ("40P01", "deadlock detected"),
        ("53100", "could not extend file \"base/5/1259\": No space left on device"),
        ("53200", "out of memory"),
        ("55P03", "canceling statement due to lock timeout"),
        ("57014", "canceling statement due to statement timeout"),
        ("53300", "too many connections for role"),
        ("58030", "could not read block 7"),
        ("XX002", "index contains unexpected zero page"),
    ];
    let seen = if D::HAS_SQLSTATES { outages.len() } else { 6 };
    let refusals = [("23505", "duplicate key"), ("53400", "temporary file size exceeds temp_file_limit")];
    let raise = |state: &str, text: &str| {
        Step::sql(format!("DO $$ BEGIN RAISE EXCEPTION '{text}' USING ERRCODE = '{state}'; END $$"))
    };
    let message = delivered(order);
    for (state, text) in &outages[..seen] {
        let error = driver.apply(&inbox, &message, &[bill(order), raise(state, text)]).unwrap_err();
        assert!(D::is_passing(&error), "{state}: {error:?}");
    }
    for (attempts, (state, text)) in (1..).zip(&refusals) {
        let outcome = driver.apply(&inbox, &message, &[bill(order), raise(state, text)]).expect("counted");
        assert_eq!(outcome, Outcome::Again { attempts }, "{state}");
    }
    let outcome = driver.apply(&inbox, &message, &[bill(order)]).expect("applied");
    assert!(matches!(outcome, Outcome::Applied(_)), "{outcome:?}");
    assert_eq!(invoices(order), "1");
}

fn a_message_that_the_inbox_refuses_is_a_dead_letter<D: Driver>() {
    let order = order();
    let mut driver = D::connect();
    let inbox = inbox::<D>();
    let message = delivered(order);
    let _ = driver.apply(&inbox, &message, &[bill(order)]).expect("applied");
    let other = Message { payload: "{}".into(), ..message.clone() };
    let old = MessageId::derived(OffsetDateTime::now_utc() - Duration::days(20), [order.to_string()]);
    let old = Message { id: old.expect("an id"), ..message.clone() };
    let chunk = Chunk::new(0, 2, 10, [0; 32].into()).expect("a chunk");
    let chunk = Message { chunk: Some(Box::new(chunk)), ..delivered(order) };
    for (message, reason) in [(&other, "key_reused"), (&old, "too_old")] {
        let outcome = driver.apply(&inbox, message, &[bill(order)]).expect("stored");
        assert_eq!(outcome, Outcome::DeadLetter(Committed::attest(message.id.as_uuid())));
        assert_eq!(letter(message, "reason"), reason);
    }
    let outcome = driver.apply(&inbox, &chunk, &[bill(order)]).expect("stored");
    assert!(matches!(outcome, Outcome::DeadLetter(_)), "{outcome:?}");
    assert_eq!(invoices(order), "1");
}

fn a_redrive_takes_effect_once<D: Driver>() {
    let order = order();
    let message = delivered(order);
    let mut driver = D::connect();
    let inbox = inbox::<D>();
    let _ = driver.apply(&inbox, &message, &[Step::Reject("blocked")]).expect("stored");
    let ask = || {
        database::execute(&format!(
            "INSERT INTO inbox_audit (actor, note, action, dead_letter, consumer)
                VALUES ('ann', 'prices are back', 'redrive', '{}', 'billing-{}')",
            letter(&message, "id"),
            D::NAME
        ));
    };
    ask();
    assert!(driver.redrive(&inbox, &[bill(order), Step::Fail("still blocked")]).expect("a redrive"));
    assert_eq!((letter(&message, "resolution"), invoices(order)), (String::new(), "0".into()));
    ask();
    assert!(driver.redrive(&inbox, &[bill(order)]).expect("a redrive"));
    assert!(!driver.redrive(&inbox, &[bill(order)]).expect("no redrive"));
    assert_eq!((letter(&message, "resolution"), invoices(order)), ("applied".into(), "1".into()));
    let outcome = driver.apply(&inbox, &message, &[bill(order)]).expect("known");
    assert!(matches!(outcome, Outcome::Known(_)), "{outcome:?}");
}

/// Oracle: a failure that is older than the retention goes, a younger one and the days stay.
fn an_inbox_is_maintained_and_a_retention_out_of_bounds_is_refused<D: Driver>() {
    let mut driver = D::connect();
    let consumer = format!("maintained-{}", D::NAME);
    database::execute(&format!(
        "INSERT INTO inbox_attempt (consumer, scope, message_id, attempts, last_error, first_failed_at, next_at)
            SELECT '{consumer}', '', gen_random_uuid(), days, 'x', now() - make_interval(days => days), now()
            FROM unnest(ARRAY[3, 20]) AS days"
    ));
    let left =
        format!("SELECT string_agg(attempts::text, ' ') FROM inbox_attempt WHERE consumer = '{consumer}'");
    // The days of other drivers' cases are locked only briefly.
    let is_maintained = (0..40).any(|_| {
        let problems = driver.maintain(&inbox::<D>()).expect("today is there");
        thread::sleep(std::time::Duration::from_millis(if problems.is_empty() { 0 } else { 100 }));
        problems.is_empty()
    });
    assert!(is_maintained && database::text(&left) == "3", "{}", database::text(&left));
    assert_eq!(database::text("SELECT count(*)::text FROM inbox_day"), "22");
    let error = driver.maintain(&inbox::<D>().retention_days(367)).unwrap_err();
    assert!(error.to_string().ends_with("choose 1 to 366"), "{error}");
}
