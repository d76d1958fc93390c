//! The result, for people and for programs. Everything in it was counted; nothing is assumed.

use std::fmt::Write;

use checker::Breach;
use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{ContentArrangement, Table};
use serde_json::{Value, json};

use crate::progress::Counts;
use crate::verdict::Verdict;

/// Maximum number of breaches listed for each promise.
const LISTED: usize = 5;

/// Minimum width at which the table is readable, in columns.
const COLUMNS_MIN: u16 = 60;

/// The result of a run. Serialized, it is one flat object.
#[derive(Debug)]
pub struct Report {
    pub(crate) seed: u64,
    pub(crate) database: String,
    pub(crate) broker: String,
    pub(crate) seconds: f64,
    /// Orders rolled back on purpose.
    pub(crate) rolled_back: u64,
    pub(crate) counts: Counts,
    /// Deliveries to the consumer beyond the first of each message.
    pub(crate) redelivered: u64,
    /// Deliveries that the inbox recognised as duplicates.
    pub(crate) duplicates_suppressed: u64,
    pub(crate) dead_letters: u64,
    pub(crate) parked: u64,
    pub(crate) guarded: bool,
    pub(crate) verdict: Verdict,
    /// Faults that were not injected and facts that were observed in another way, with the reasons.
    pub(crate) notes: Vec<String>,
}

impl serde::Serialize for Report {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.json().serialize(serializer)
    }
}

impl Report {
    /// Returns whether every promise held.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.verdict.holds()
    }

    fn json(&self) -> Value {
        let (verdict, counts) = (&self.verdict, &self.counts);
        let breaches: Vec<String> = verdict.promises().concat().iter().map(Breach::to_string).collect();
        json!({
            "ok": verdict.holds(),
            "orders": verdict.orders,
            "rolled_back": self.rolled_back,
            "enqueued": verdict.enqueued,
            "published": verdict.published,
            "broker_records": verdict.records,
            "redelivered": self.redelivered,
            "delivered_again_on_purpose": counts.copies,
            "rewound": counts.rewound,
            "duplicates_suppressed": self.duplicates_suppressed,
            "effects": verdict.effects,
            "not_atomic": verdict.not_atomic.len(),
            "lost": verdict.lost.len(),
            "lost_effects": verdict.lost_effects.len(),
            "phantom": verdict.phantom.len(),
            "duplicate_effects": verdict.duplicate_effects.len(),
            "order_violations": verdict.order_violations.as_ref().map(Vec::len),
            "altered": verdict.altered.len(),
            "cents_ordered": verdict.cents_ordered,
            "cents_charged": verdict.cents_charged,
            "relay_kills": counts.relay_kills,
            "relay_restarts": counts.relay_restarts,
            "consumer_crashes": counts.consumer_crashes,
            "broker_outages": counts.outages,
            "dead_letters": self.dead_letters,
            "parked": self.parked,
            "inbox_guard": self.guarded,
            "seconds": (self.seconds * 100.0).round() / 100.0,
            "seed": self.seed,
            "database": self.database,
            "broker": self.broker,
            "breaches": breaches.iter().take(LISTED * 7).collect::<Vec<_>>(),
            "notes": self.notes,
        })
    }

    /// Returns a table and its conclusion.
    #[must_use]
    pub fn table(&self) -> String {
        let mut table = Table::new();
        table.load_style(UTF8_FULL_CONDENSED);
        // The table is wrapped for a terminal. A terminal that is narrower, or does not know its
        // width, wraps lines itself.
        if table.width().is_some_and(|columns| columns >= COLUMNS_MIN) {
            table.set_content_arrangement(ContentArrangement::Dynamic);
        }
        table.set_header(["promise", "attempted against it", "counted", ""]);
        for Row { promise, attempted, counted, breaches } in self.rows() {
            let mark = match breaches {
                None => "–",
                Some([]) => "✓",
                Some(_) => "✗",
            };
            table.add_row([promise, &attempted, &counted, mark]);
        }
        let mut text = format!("{table}\n");
        // Writing to a String cannot fail.
        let _ = write!(text, "{}", self.conclusion());
        text
    }

    fn rows(&self) -> Vec<Row<'_>> {
        let (v, c) = (&self.verdict, &self.counts);
        let row = |promise, attempted, counted, breaches| Row { promise, attempted, counted, breaches };
        let relays = format!("{} relays killed, {} broker outages", c.relay_kills, c.outages);
        let (orders, copies) = (v.orders, c.copies);
        let unordered = || String::from("a standard queue has none");
        vec![
            row(
                "an order and its message commit together",
                format!("{} orders rolled back, some to a savepoint", self.rolled_back),
                format!("{orders} orders, {} messages", v.enqueued),
                Some(&v.not_atomic),
            ),
            row(
                "rolled back messages are never published",
                format!("{} orders rolled back", self.rolled_back),
                format!("{} phantoms", v.phantom.len()),
                Some(&v.phantom),
            ),
            row(
                "every message reaches the broker",
                relays.clone(),
                format!("{} of {}, in {} records", v.published, v.enqueued, v.records),
                Some(&v.lost),
            ),
            row(
                "a customer's messages arrive in order",
                format!("{relays}, {} successors", c.relay_restarts),
                v.order_violations
                    .as_ref()
                    .map_or_else(unordered, |found| format!("{} out of order", found.len())),
                v.order_violations.as_deref(),
            ),
            row(
                "every message takes effect",
                format!(
                    "{} consumers crashed between effect, commit and acknowledgement",
                    c.consumer_crashes
                ),
                format!("{} effects, {} lost", v.effects, v.lost_effects.len()),
                Some(&v.lost_effects),
            ),
            row(
                "no message takes effect twice",
                format!("{} deliveries repeated, {copies} of them on purpose", self.redelivered.max(copies)),
                format!(
                    "{} suppressed, {} applied twice",
                    self.duplicates_suppressed,
                    v.duplicate_effects.len()
                ),
                Some(&v.duplicate_effects),
            ),
            row(
                "a message never changes",
                String::from("all of the above"),
                format!("{} altered", v.altered.len()),
                Some(&v.altered),
            ),
        ]
    }

    fn conclusion(&self) -> String {
        let v = &self.verdict;
        let (charged, ordered) = (money(v.cents_charged), money(v.cents_ordered));
        let mut text = format!("charged {charged} for orders of {ordered}\n");
        for note in &self.notes {
            let _ = writeln!(text, "note: {note}");
        }
        for breaches in v.promises() {
            for breach in breaches.iter().take(LISTED) {
                let _ = writeln!(text, "✗ {breach}");
            }
            if breaches.len() > LISTED {
                let _ = writeln!(text, "✗ … and {} more of this kind", breaches.len() - LISTED);
            }
        }
        let outcome = if v.holds() { "every promise held" } else { "a promise was broken" };
        let Self { seed, seconds, database, broker, .. } = self;
        let _ = writeln!(text, "{outcome}: {database} × {broker}, seed {seed}, {seconds:.1} s");
        text
    }
}

/// A promise in the table.
struct Row<'a> {
    promise: &'static str,
    attempted: String,
    counted: String,
    /// Its breaches, or `None` if the promise could not be checked.
    breaches: Option<&'a [Breach]>,
}

fn money(cents: u64) -> String {
    format!("{}.{:02}", cents / 100, cents % 100)
}

#[cfg(test)]
mod tests {
    use super::*;
    use checker::{Subject, Violation};
    use uuid::Uuid;

    fn report(verdict: Verdict) -> Report {
        Report {
            seed: 7,
            database: "sqlite files".into(),
            broker: "kafka".into(),
            seconds: 1.234,
            rolled_back: 3,
            counts: Counts::default(),
            redelivered: 5,
            duplicates_suppressed: 4,
            dead_letters: 0,
            parked: 0,
            guarded: true,
            verdict,
            notes: vec!["no outages: because".into()],
        }
    }

    #[test]
    fn a_run_that_kept_its_promises_says_so() {
        let report = report(Verdict { orders: 10, order_violations: Some(Vec::new()), ..Verdict::default() });
        let text = report.table();
        assert_eq!(text.matches('✓').count(), 7, "{text}");
        assert!(text.contains("every promise held") && text.contains("seed 7"), "{text}");
        let json = report.json();
        assert_eq!((&json["ok"], &json["orders"], &json["lost"]), (&json!(true), &json!(10), &json!(0)));
    }

    #[test]
    fn a_broken_promise_is_marked_and_its_first_ids_are_listed() {
        let breach = |n| Breach {
            violation: Violation::AppliedAgain,
            subject: Subject::message(Uuid::from_u128(n)),
            events: Vec::new(),
        };
        let verdict = Verdict { duplicate_effects: (0..9).map(breach).collect(), ..Verdict::default() };
        let report = report(verdict);
        let text = report.table();
        assert!(text.contains("a promise was broken") && text.contains("and 4 more"), "{text}");
        assert!(text.contains(&Uuid::from_u128(4).to_string()), "{text}");
        // The order could not be checked, so nothing is claimed about it.
        assert!(text.contains("–"), "{text}");
        assert_eq!(report.json()["duplicate_effects"], json!(9));
        assert_eq!(report.json()["order_violations"], Value::Null);
    }
}
