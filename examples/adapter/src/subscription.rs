//! One consuming session.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{self, Seek as _, SeekFrom, Write as _};
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use message::{Delivery, DeliveryToken, Disposition, Settlement, Subscription, SubscriptionError};
use tokio::sync::mpsc;

use crate::record;
use crate::tail::Line;

/// The last token that any session of this process assigned. A token is never reused, so a token of
/// an ended session means nothing to the next session.
static LAST_TOKEN: AtomicU64 = AtomicU64::new(0);

/// The only member of a group. Dropping it admits the next member; unsettled messages come again.
pub(crate) struct DirectorySubscription {
    topic: String,
    log: File,
    /// Locked as long as the session lasts.
    place: File,
    lines: mpsc::Receiver<io::Result<Line>>,
    /// Released lines, which come again.
    released: VecDeque<Line>,
    /// Unsettled deliveries.
    in_hand: BTreeMap<DeliveryToken, Line>,
    /// Lines that are not settled, in hand or released: their beginning, and their end.
    unsettled: BTreeMap<u64, u64>,
    /// The beginning of the first line that was never delivered.
    next: u64,
    /// The position in the group's file.
    settled: u64,
}

impl DirectorySubscription {
    pub(crate) fn new(
        topic: String,
        log: File,
        place: File,
        lines: mpsc::Receiver<io::Result<Line>>,
        begin: u64,
    ) -> Self {
        Self {
            topic,
            log,
            place,
            lines,
            released: VecDeque::new(),
            in_hand: BTreeMap::new(),
            unsettled: BTreeMap::new(),
            next: begin,
            settled: begin,
        }
    }

    fn deliver(&mut self, line: Line, redelivered: bool) -> Delivery {
        let token = DeliveryToken(LAST_TOKEN.fetch_add(1, Ordering::Relaxed) + 1);
        let delivery = Delivery {
            token,
            message: record::read(&self.topic, &line.bytes).map_err(|malformed| *malformed),
            redelivered,
            origin: format!("{}@{}", self.topic, line.begin),
        };
        self.next = self.next.max(line.end);
        self.unsettled.insert(line.begin, line.end);
        self.in_hand.insert(token, line);
        delivery
    }

    /// Stores the position up to which everything is settled, if it has changed.
    fn checkpoint(&mut self) -> io::Result<()> {
        let settled = self.unsettled.keys().next().copied().unwrap_or(self.next);
        if settled == self.settled {
            return Ok(());
        }
        // The position must never be ahead of the part of the topic that survives a power cut.
        self.log.sync_data()?;
        // A fixed width, so that a shorter number leaves no digits of a longer one.
        self.place.seek(SeekFrom::Start(0))?;
        self.place.write_all(format!("{settled:020}\n").as_bytes())?;
        self.place.sync_data()?;
        self.settled = settled;
        Ok(())
    }
}

#[async_trait]
impl Subscription for DirectorySubscription {
    fn origin(&self) -> &str {
        &self.topic
    }

    async fn receive(
        &mut self,
        max: NonZeroUsize,
        wait: Duration,
    ) -> Result<Vec<Delivery>, SubscriptionError> {
        let mut deliveries = Vec::new();
        while deliveries.len() < max.get()
            && let Some(line) = self.released.pop_front()
        {
            deliveries.push(self.deliver(line, true));
        }
        if !deliveries.is_empty() {
            return Ok(deliveries);
        }
        let mut lines = Vec::new();
        // Cancel-safe: a dropped `recv_many` loses nothing.
        let received = tokio::time::timeout(wait, self.lines.recv_many(&mut lines, max.get())).await;
        if received == Ok(0) {
            return Err(SubscriptionError::lost(format!("reading the topic {} has ended", self.topic)));
        }
        for line in lines {
            let line = line.map_err(|error| {
                SubscriptionError::lost(format!("cannot read the topic {}: {error}", self.topic))
                    .with_source(error)
            })?;
            deliveries.push(self.deliver(line, false));
        }
        Ok(deliveries)
    }

    async fn settle(&mut self, settlements: Vec<Settlement>) -> Result<(), SubscriptionError> {
        for settlement in settlements {
            // A token of a session that is over is skipped.
            let Some(line) = self.in_hand.remove(&settlement.token()) else { continue };
            match settlement.disposition() {
                Disposition::Done => {
                    self.unsettled.remove(&line.begin);
                }
                // `Release`, and any later disposition that hands a delivery back.
                _ => self.released.push_back(line),
            }
        }
        self.checkpoint().map_err(|error| {
            SubscriptionError::lost(format!("cannot note what is settled of {}: {error}", self.topic))
                .with_source(error)
        })
    }

    async fn keep_alive(&mut self, _: &[DeliveryToken]) -> Result<(), SubscriptionError> {
        Ok(())
    }

    async fn close(self: Box<Self>) -> Result<(), SubscriptionError> {
        Ok(())
    }
}
