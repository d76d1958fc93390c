//! Exports: lists as files, sent while they are read.

use std::future::ready;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{once, unfold};
use futures_util::{Stream, StreamExt as _};
use maud::{Markup, html};
use operate::export::{AuditExport, DeadExport, ExportFormat};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::address::with_query;
use super::answer::Problem;

/// Maximum number of exports at once. They do not use the slots of pages.
const EXPORTS_MAX: usize = 2;
/// Maximum time of an export.
const LASTS_MAX: Duration = Duration::from_secs(600);
/// Maximum time that a reader may take for a part.
const READER_MAX: Duration = Duration::from_secs(30);
/// Parts read ahead of the reader; each has up to 500 rows.
const AHEAD: usize = 2;

/// The exports that are running.
pub(crate) struct Exports(Arc<Semaphore>);

impl Exports {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Semaphore::new(EXPORTS_MAX)))
    }

    /// Takes the slot of one export, if there is room.
    pub(crate) fn begin(&self) -> Result<OwnedSemaphorePermit, Problem> {
        let full = |_| {
            let text = format!("{EXPORTS_MAX} exports are running, which is the maximum of a process");
            let problem = Problem::new(StatusCode::TOO_MANY_REQUESTS, text);
            problem.with_help("wait until one has ended, and export again")
        };
        Arc::clone(&self.0).try_acquire_owned().map_err(full)
    }
}

/// A running export.
pub(crate) enum Exporting {
    Audit(Box<AuditExport>),
    Dead(Box<DeadExport>),
}

impl Exporting {
    async fn next(&mut self) -> Option<String> {
        match self {
            Self::Audit(export) => export.next().await,
            Self::Dead(export) => export.next().await,
        }
    }
}

/// Answers with a file. A task reads the databases, so that a stopped reader holds a slot and its
/// sessions for at most 30 seconds. A disconnected reader, or `stop`, ends it. A file that does not
/// reach its end is cut, not closed: the reader sees that it is incomplete.
pub(crate) fn answer(
    name: &str,
    format: ExportFormat,
    place: OwnedSemaphorePermit,
    export: Exporting,
    stop: CancellationToken,
) -> Response {
    let parts = unfold(export, |mut export| async move { Some((export.next().await?, export)) });
    let received = begin(parts, place, stop);
    let stream = unfold(Some(received), |received| async move {
        let mut received = received?;
        match received.recv().await {
            Some(Some(part)) => Some((Ok(part), Some(received))),
            // The end of the file.
            Some(None) => None,
            None => Some((Err(io::Error::other("the export was cut short")), None)),
        }
    });
    let mut response = Body::from_stream(stream).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(format.content_type()));
    let file = format!("attachment; filename=\"{name}.{format}\"");
    if let Ok(file) = HeaderValue::from_str(&file) {
        headers.insert(header::CONTENT_DISPOSITION, file);
    }
    response
}

/// Reads the parts in a task, and sends those with rows. The end of the file is `None`.
fn begin(
    parts: impl Stream<Item = String> + Send + 'static,
    place: OwnedSemaphorePermit,
    stop: CancellationToken,
) -> mpsc::Receiver<Option<String>> {
    let (sender, received) = mpsc::channel(AHEAD);
    tokio::spawn(async move {
        let _place = place;
        let sending = send(parts, &sender);
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            () = sender.closed() => {}
            _ = timeout(LASTS_MAX, sending) => {}
        }
    });
    received
}

async fn send(parts: impl Stream<Item = String>, to: &mpsc::Sender<Option<String>>) {
    // An audit without a match has many parts without a row.
    let parts = parts.filter(|part| ready(!part.is_empty())).map(Some);
    let mut parts = pin!(parts.chain(once(ready(None))));
    while let Some(part) = parts.next().await {
        if !matches!(timeout(READER_MAX, to.send(part)).await, Ok(Ok(()))) {
            return;
        }
    }
}

/// Renders the links to the files of a list with its filter.
pub(crate) fn links(path: &str, kept: &[(&str, &str)]) -> Markup {
    let to = |format: &str| with_query(path, &[kept, &[("format", format)]].concat());
    html! {
        p class="faint" {
            "Export everything that matches: "
            a href=(to("csv")) download { "CSV" } " · " a href=(to("json")) download { "JSON" }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::stream::{iter, pending};
    use operate::audit::AuditFilter;
    use operate::dead::{Filter, States};
    use operate::{Operator, Places, Role};

    use super::*;

    fn ann() -> Operator {
        Operator::new("ann", Role::Viewer)
    }

    fn stop() -> CancellationToken {
        CancellationToken::new()
    }

    #[tokio::test]
    async fn a_file_is_sent_whole_and_named() {
        let exports = Exports::new();
        let export = AuditExport::new(
            Places::new(),
            Vec::new(),
            &ann(),
            AuditFilter::default(),
            false,
            ExportFormat::Json,
        );
        let export = Exporting::Audit(Box::new(export.unwrap()));
        let response = answer("audit", ExportFormat::Json, exports.begin().unwrap(), export, stop());
        let file = response.headers()[header::CONTENT_DISPOSITION].to_str().unwrap();
        assert_eq!(file, "attachment; filename=\"audit.json\"");
        let bytes = axum::body::to_bytes(response.into_body(), 1_000).await.unwrap();
        let json: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(json, serde_json::json!({ "decisions": [], "missing": [] }));
    }

    /// Goal: a reader that stops frees its slot. Oracle: the next export begins.
    #[tokio::test(start_paused = true)]
    async fn a_reader_that_stops_keeps_no_place() {
        let exports = Exports::new();
        // Its beginning, its end, and the mark that it is whole: one more than are read ahead.
        let states = vec![States::Dead; 100];
        let export = DeadExport::new(Places::new(), &ann(), Filter::default(), states, ExportFormat::Json);
        let export = Exporting::Dead(Box::new(export.unwrap()));
        let other = exports.begin().unwrap();
        let response = answer("messages", ExportFormat::Json, exports.begin().unwrap(), export, stop());
        assert!(exports.begin().is_err_and(|problem| problem.status == StatusCode::TOO_MANY_REQUESTS));
        tokio::time::sleep(READER_MAX + Duration::from_secs(1)).await;
        assert!(exports.begin().is_ok());
        // The rest is missing, and the reader sees that.
        assert!(axum::body::to_bytes(response.into_body(), 1_000_000).await.is_err());
        drop(other);
    }

    /// Goal: an export that finds nothing ends with its reader. Oracle: its place is free long
    /// before a reader may be late, although no part was ever sent.
    #[tokio::test(start_paused = true)]
    async fn an_export_without_a_match_ends_with_its_reader() {
        let exports = Exports::new();
        let empty = unfold((), |()| async {
            tokio::time::sleep(Duration::from_millis(10)).await;
            Some((String::new(), ()))
        });
        let other = exports.begin().unwrap();
        let received = begin(empty, exports.begin().unwrap(), stop());
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(exports.begin().is_err(), "it is read on");
        drop(received);
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(exports.begin().is_ok());
        drop(other);
    }

    /// Goal: an export of any list ends, also while a database sends a row now and then. Oracle:
    /// when its slot is free, and that its file is cut.
    #[tokio::test(start_paused = true)]
    async fn an_export_has_a_limit() {
        let exports = Exports::new();
        let endless = unfold((), |()| async {
            tokio::time::sleep(Duration::from_secs(5)).await;
            Some((String::from("row"), ()))
        });
        let begun = tokio::time::Instant::now();
        let mut received = begin(endless, exports.begin().unwrap(), stop());
        while received.recv().await.is_some_and(|part| part.is_some()) {}
        assert_eq!(begun.elapsed(), LASTS_MAX);
        assert_eq!(received.recv().await, None, "it is cut");
        let both = [exports.begin(), exports.begin()];
        assert!(both.iter().all(Result::is_ok), "its slot is free");
    }

    /// Goal: an export does not keep a service from its end. Oracle: what its reader receives after
    /// the stop: the parts before it, and no mark of the end.
    #[tokio::test]
    async fn an_export_that_is_stopped_is_cut() {
        let exports = Exports::new();
        let stop = stop();
        let parts = iter([String::from("row")]).chain(pending());
        let mut received = begin(parts, exports.begin().unwrap(), stop.clone());
        assert_eq!(received.recv().await, Some(Some(String::from("row"))));
        stop.cancel();
        assert_eq!(received.recv().await, None, "it is cut");
    }

    #[test]
    fn links_keep_the_filter() {
        let text = links("/audit/export", &[("actor", "a&b")]).into_string();
        assert!(text.contains("/audit/export?actor=a%26b&amp;format=csv"), "{text}");
    }
}
