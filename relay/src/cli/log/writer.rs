//! Writes the log without waiting for its reader.
//!
//! A reader that hangs must not stop publishing, and one that has closed must not end the process.
//! So the lines pass through a bounded queue to a thread. Lines that do not fit, or that cannot be
//! written, are dropped and counted.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::time::Duration;

use tracing_subscriber::fmt::MakeWriter;

/// Maximum size of the queue: some 20,000 lines.
const BYTES_MAX: usize = 4 << 20;
/// Maximum time that the end of the process waits for the reader.
const FLUSH_MAX: Duration = Duration::from_secs(1);

/// A task of the thread.
enum Task {
    Line(Vec<u8>),
    /// Answer when all earlier lines are written.
    Flushed(SyncSender<()>),
}

/// The sizes that the writers and the thread share.
#[derive(Debug, Default)]
struct Counts {
    queued_bytes: AtomicUsize,
    dropped_lines: AtomicU64,
}

/// Puts lines into the queue. Never blocks and never fails.
#[derive(Debug, Clone)]
pub(super) struct LineWriter {
    tasks: Sender<Task>,
    counts: Arc<Counts>,
}

/// On drop, writes the remaining lines, and waits up to a second for this.
#[derive(Debug)]
pub(crate) struct FlushAtEnd(LineWriter);

/// Starts the thread that writes lines to `out`.
///
/// # Errors
/// The thread could not be started.
pub(super) fn start(out: impl Write + Send + 'static) -> io::Result<(LineWriter, FlushAtEnd)> {
    let (tasks, queue) = channel();
    let counts = Arc::new(Counts::default());
    let writer = LineWriter { tasks, counts: Arc::clone(&counts) };
    let run = move || write_all(out, &queue, &counts);
    std::thread::Builder::new().name(String::from("log")).spawn(run)?;
    Ok((writer.clone(), FlushAtEnd(writer)))
}

fn write_all(mut out: impl Write, queue: &Receiver<Task>, counts: &Counts) {
    for task in queue {
        match task {
            Task::Line(line) => {
                if out.write_all(&line).and_then(|()| out.flush()).is_err() {
                    counts.dropped_lines.fetch_add(1, Ordering::Relaxed);
                }
                counts.queued_bytes.fetch_sub(line.len(), Ordering::Relaxed);
            }
            Task::Flushed(done) => {
                // Its receiver has stopped waiting.
                let _ = done.send(());
            }
        }
    }
}

impl LineWriter {
    /// Returns the number of lines that were dropped since the start.
    pub(super) fn dropped(&self) -> u64 {
        self.counts.dropped_lines.load(Ordering::Relaxed)
    }

    fn queue(&self, line: &[u8]) {
        let queued = self.counts.queued_bytes.fetch_add(line.len(), Ordering::Relaxed);
        if queued + line.len() > BYTES_MAX || self.tasks.send(Task::Line(line.to_vec())).is_err() {
            self.counts.queued_bytes.fetch_sub(line.len(), Ordering::Relaxed);
            self.counts.dropped_lines.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Write for LineWriter {
    /// Takes a whole line: the formatter calls it once for each event.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.queue(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for LineWriter {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

impl FlushAtEnd {
    /// Writes a text after the lines, without waiting for it.
    pub(crate) fn print(&self, text: &str) {
        self.0.queue(text.as_bytes());
    }
}

impl Drop for FlushAtEnd {
    fn drop(&mut self) {
        let (done, flushed) = sync_channel(1);
        if self.0.tasks.send(Task::Flushed(done)).is_ok() {
            // A reader that hangs does not keep the process.
            let _ = flushed.recv_timeout(FLUSH_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// Waits for a permit before each line, and fails without permits.
    struct Reader {
        permits: Receiver<()>,
        read: Arc<Mutex<Vec<u8>>>,
    }

    impl Write for Reader {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            self.permits.recv().map_err(|_| io::ErrorKind::BrokenPipe)?;
            self.read.lock().unwrap().extend(line);
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_reader_that_hangs_stops_nobody_and_one_that_is_gone_is_counted() {
        let (permit, permits) = channel();
        let read = Arc::default();
        let (mut writer, end) = start(Reader { permits, read: Arc::clone(&read) }).unwrap();
        let line = vec![b'x'; BYTES_MAX / 4];
        // The thread holds the first one until it is permitted, and that still counts.
        for _ in 0..6 {
            writer.write_all(&line).unwrap();
        }
        assert_eq!(writer.dropped(), 2);
        permit.send(()).unwrap();
        // Of the four lines, one is read. The others meet a closed pipe.
        drop(permit);
        drop(end);
        assert_eq!((writer.dropped(), read.lock().unwrap().len()), (5, line.len()));
        writer.write_all(b"more\n").unwrap();
    }

    #[test]
    fn lines_keep_their_order_and_the_last_ones_are_written() {
        let (permit, permits) = channel();
        let read = Arc::default();
        let (mut writer, end) = start(Reader { permits, read: Arc::clone(&read) }).unwrap();
        for number in 0..100 {
            permit.send(()).unwrap();
            writer.write_all(format!("{number}\n").as_bytes()).unwrap();
        }
        permit.send(()).unwrap();
        end.print("100\n");
        drop(end);
        let expected: String = (0..=100).map(|number| format!("{number}\n")).collect();
        assert_eq!((read.lock().unwrap().as_slice(), writer.dropped()), (expected.as_bytes(), 0));
    }
}
