//! The progress of a run, for its parts and for people.

use std::fmt;
use std::io::{IsTerminal, Write as _};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use tokio::sync::watch;

/// The progress of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Orders committed.
    pub(crate) committed: u64,
    /// Messages that the relays have passed.
    pub(crate) published: u64,
    /// Rows of effects.
    pub(crate) effects: u64,
    /// Copies that the demo's own client delivered.
    pub(crate) copies: u64,
    /// Whether all producers have ended.
    pub(crate) producers_done: bool,
    /// Relays killed.
    pub(crate) relay_kills: u64,
    /// Relays that have taken over from a killed one.
    pub(crate) relay_restarts: u64,
    /// The process id of the relay that leads.
    pub(crate) leader: Option<i32>,
    /// The epoch of the leader's lease.
    pub(crate) epoch: i64,
    /// Consumers that crashed as planned.
    pub(crate) consumer_crashes: u64,
    /// Outages of the broker that are over.
    pub(crate) outages: u64,
    /// Messages that a consumer received again because it started from older offsets.
    pub(crate) rewound: u64,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} orders committed, {} messages confirmed, {} effects, {} delivered again, {} relays killed, {} \
             consumers crashed, {} outages",
            self.committed,
            self.published,
            self.effects,
            self.copies,
            self.relay_kills,
            self.consumer_crashes,
            self.outages
        )
    }
}

/// The progress that all parts of a run share. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Progress {
    counts: watch::Sender<Counts>,
    view: View,
}

/// The way in which progress is shown.
#[derive(Clone)]
enum View {
    /// A terminal: bars.
    Bars { all: MultiProgress, committed: ProgressBar, published: ProgressBar, effects: ProgressBar },
    /// No terminal: a line for each event.
    Lines,
    /// Nothing.
    Quiet,
}

impl Progress {
    /// Creates the progress for this number of orders. `quiet` shows nothing.
    pub(crate) fn new(orders: u64, quiet: bool) -> Self {
        let view = match (quiet, std::io::stderr().is_terminal()) {
            (true, _) => View::Quiet,
            (false, false) => View::Lines,
            (false, true) => bars(orders),
        };
        Self { counts: watch::Sender::default(), view }
    }

    /// Changes the counts.
    pub(crate) fn update(&self, change: impl FnOnce(&mut Counts)) {
        self.counts.send_modify(change);
        if let View::Bars { committed, published, effects, .. } = &self.view {
            let counts = self.counts.borrow();
            committed.set_position(counts.committed);
            // Copies do not count as progress.
            published.set_position(counts.published.min(counts.committed));
            effects.set_position(counts.effects.min(counts.committed));
        }
    }

    /// Returns the current counts.
    pub(crate) fn counts(&self) -> Counts {
        self.counts.borrow().clone()
    }

    /// Waits until the counts satisfy the condition. Cancel-safe.
    pub(crate) async fn until(&self, wanted: impl FnMut(&Counts) -> bool) {
        // An error would mean that no sender is left, but `self` is a sender.
        let _ = self.counts.subscribe().wait_for(wanted).await;
    }

    /// Shows what is happening.
    pub(crate) fn say(&self, what: &str) {
        match &self.view {
            // Lines that the terminal does not accept are lost, but the run continues.
            View::Bars { all, .. } => drop(all.println(format!("  • {what}"))),
            View::Lines => drop(writeln!(std::io::stderr(), "{what}")),
            View::Quiet => {}
        }
    }

    /// Removes the bars.
    pub(crate) fn finish(&self) {
        if let View::Bars { committed, published, effects, .. } = &self.view {
            [committed, published, effects].into_iter().for_each(ProgressBar::finish_and_clear);
        }
    }
}

fn bars(orders: u64) -> View {
    let all = MultiProgress::new();
    // The template is a constant; without it, the bar looks plainer.
    let style = ProgressStyle::with_template("{prefix:>20} {bar:40.cyan/blue} {pos}/{len} {elapsed}")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    let bar =
        |name: &'static str| all.add(ProgressBar::new(orders).with_style(style.clone()).with_prefix(name));
    let (committed, published) = (bar("orders committed"), bar("messages published"));
    View::Bars { committed, published, effects: bar("effects applied"), all: all.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_waiter_sees_what_it_waits_for() {
        let progress = Progress::new(10, true);
        let waiting = {
            let progress = progress.clone();
            tokio::spawn(async move { progress.until(|counts| counts.published >= 3).await })
        };
        progress.update(|counts| counts.published = 3);
        waiting.await.unwrap();
        assert_eq!(progress.counts().published, 3);
    }
}
