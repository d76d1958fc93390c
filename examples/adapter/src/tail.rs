//! A thread that reads a topic's file as it grows.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Seek as _, SeekFrom};
use std::thread;
use std::time::Duration;

use tokio::sync::mpsc;

/// The maximum number of lines that are read ahead.
const AHEAD: usize = 64;
/// The pause before a file that has not grown is read again.
const PAUSE: Duration = Duration::from_millis(10);

/// A whole line of a topic's file.
#[derive(Debug)]
pub(crate) struct Line {
    /// Its beginning, in bytes.
    pub(crate) begin: u64,
    /// The beginning of the next line, in bytes.
    pub(crate) end: u64,
    /// Its bytes, without the end of the line.
    pub(crate) bytes: Vec<u8>,
}

/// Reads whole lines from `begin` on, without end. A failure of the disk is the last item. The
/// thread ends soon after the receiver is dropped.
pub(crate) fn follow(file: File, begin: u64) -> io::Result<mpsc::Receiver<io::Result<Line>>> {
    let (sender, lines) = mpsc::channel(AHEAD);
    thread::Builder::new().name("directory-tail".to_owned()).spawn(move || {
        if let Err(error) = read(file, begin, &sender) {
            let _ = sender.blocking_send(Err(error));
        }
    })?;
    Ok(lines)
}

fn read(file: File, mut begin: u64, lines: &mpsc::Sender<io::Result<Line>>) -> io::Result<()> {
    let mut reader = BufReader::new(file);
    reader.seek(SeekFrom::Start(begin))?;
    while !lines.is_closed() {
        let mut bytes = Vec::new();
        let read = reader.read_until(b'\n', &mut bytes)?;
        if bytes.pop() != Some(b'\n') {
            // The writer has not finished this line.
            reader.seek(SeekFrom::Start(begin))?;
            thread::sleep(PAUSE);
            continue;
        }
        let end = begin + read as u64;
        if lines.blocking_send(Ok(Line { begin, end, bytes })).is_err() {
            break;
        }
        begin = end;
    }
    Ok(())
}
