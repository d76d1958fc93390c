//! One publishing session: a thread that appends, syncs, and then answers.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use async_trait::async_trait;
use message::{
    Capabilities, MaxInFlightPerKey, PublishError, Publisher, Receipts, Submission, Ticket, Topic,
};
use tokio::sync::{mpsc, oneshot};

use crate::{record, topic};

/// The maximum number of batches that wait for the disk; the next `submit` waits for room.
const BATCHES_MAX: usize = 16;

/// A session that appends to the files of one directory. Dropping it reports unwritten messages as
/// lost.
pub(crate) struct DirectoryPublisher {
    /// None once the session is closed.
    batches: Option<mpsc::Sender<Vec<Submission>>>,
    is_over: Arc<AtomicBool>,
    ended: oneshot::Receiver<()>,
}

impl DirectoryPublisher {
    pub(crate) fn start(directory: PathBuf, receipts: Receipts) -> Result<Self, PublishError> {
        let (batches, waiting) = mpsc::channel(BATCHES_MAX);
        let is_over = Arc::new(AtomicBool::new(false));
        let (end, ended) = oneshot::channel();
        let worker = Worker { directory, receipts, is_over: Arc::clone(&is_over) };
        thread::Builder::new()
            .name("directory-publisher".to_owned())
            .spawn(move || {
                worker.run(waiting);
                let _ = end.send(());
            })
            .map_err(|error| {
                PublishError::session_lost("cannot start a thread for the session").with_source(error)
            })?;
        Ok(Self { batches: Some(batches), is_over, ended })
    }
}

#[async_trait]
impl Publisher for DirectoryPublisher {
    fn profile(&self) -> Capabilities {
        // After a failure the file may still accept the next message of a key. One at a time keeps
        // their order.
        Capabilities { max_in_flight_per_key: MaxInFlightPerKey::One, batch_len: 500 }
    }

    async fn submit(&mut self, batch: Vec<Submission>) {
        if let Some(batches) = &self.batches {
            // The worker ends only after this sender is dropped.
            let _ = batches.send(batch).await;
        }
    }

    async fn close(mut self: Box<Self>, grace: Duration) {
        self.batches = None;
        // Dropping it reports the rest as lost.
        let _ = tokio::time::timeout(grace, &mut self.ended).await;
    }
}

impl Drop for DirectoryPublisher {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
    }
}

struct Worker {
    directory: PathBuf,
    receipts: Receipts,
    is_over: Arc<AtomicBool>,
}

impl Worker {
    /// Writes batch after batch. Ends when the session has ended and every submission has its
    /// receipt.
    fn run(self, mut waiting: mpsc::Receiver<Vec<Submission>>) {
        while let Some(batch) = waiting.blocking_recv() {
            let mut topics: HashMap<&Topic, Vec<&Submission>> = HashMap::new();
            for submission in &batch {
                topics.entry(&submission.message.topic).or_default().push(submission);
            }
            for (topic, submissions) in topics {
                self.write(topic, &submissions);
            }
        }
    }

    /// Appends the messages of one topic with one sync.
    fn write(&self, topic: &Topic, submissions: &[&Submission]) {
        let mut tickets: Vec<Ticket> = Vec::new();
        let mut lines = Vec::new();
        for submission in submissions {
            match record::write(&submission.message) {
                Ok(line) => {
                    tickets.push(submission.ticket);
                    lines.extend(line);
                }
                Err(reason) => self.receipts.send(submission.ticket, Err(PublishError::refused(reason))),
            }
        }
        let written = match topic::path(&self.directory, topic.as_str()) {
            _ if self.is_over.load(Ordering::Acquire) => Err(Failure::Over),
            Ok(path) => append(&path, &lines).map_err(Failure::Io),
            Err(reason) => Err(Failure::Name(reason)),
        };
        for ticket in tickets {
            let outcome = match &written {
                Ok(()) => Ok(()),
                Err(failure) => Err(failure.classify(topic)),
            };
            self.receipts.send(ticket, outcome);
        }
    }
}

enum Failure {
    /// The session was closed or dropped before the batch was written.
    Over,
    /// The name is not valid for a topic.
    Name(String),
    /// The operating system's answer.
    Io(io::Error),
}

impl Failure {
    fn classify(&self, topic: &Topic) -> PublishError {
        match self {
            Self::Over => PublishError::session_lost("the session was closed before the message was written"),
            Self::Name(reason) => PublishError::topic_unavailable(reason.clone()),
            Self::Io(error) => match error.kind() {
                ErrorKind::NotFound => PublishError::topic_unavailable(format!(
                    "the topic {topic} has no file in the directory: create it, or correct the name"
                )),
                ErrorKind::PermissionDenied => PublishError::topic_unavailable(format!(
                    "the file of the topic {topic} cannot be written: grant write permission on it"
                )),
                // It may or may not have been written: never a success.
                _ => PublishError::session_lost(format!("cannot append to the topic {topic}: {error}")),
            },
        }
    }
}

/// Appends whole lines and syncs them. First cuts off an incomplete line that a crash left: it was
/// never confirmed.
fn append(path: &Path, lines: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().read(true).append(true).open(path)?;
    file.lock()?;
    let end = end_of_lines(&mut file)?;
    if file.metadata()?.len() > end {
        file.set_len(end)?;
    }
    file.write_all(lines)?;
    file.sync_data()
}

/// Returns the position after the last whole line.
fn end_of_lines(file: &mut File) -> io::Result<u64> {
    const STEP: u64 = 4096;
    let mut end = file.metadata()?.len();
    while end > 0 {
        let begin = end.saturating_sub(STEP);
        let mut bytes = vec![0; usize::try_from(end - begin).unwrap_or_default()];
        file.seek(SeekFrom::Start(begin))?;
        file.read_exact(&mut bytes)?;
        if let Some(at) = bytes.iter().rposition(|byte| *byte == b'\n') {
            return Ok(begin + at as u64 + 1);
        }
        end = begin;
    }
    Ok(0)
}
