//! HTTP: errors, wishes to wait, answers that are lost or never come, slowness.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use libtest_mimic::Trial;
use storm::faults::broker::http::{Gateway, HttpErrors, Mood, REGISTER};
use tests::{Failure, Outcome, Stage, trial};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::scene::{empty, heal, inject};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("http/requests_go_to_the_receivers_in_turn", &[], requests_go_to_the_receivers_in_turn),
        trial("http/every_mood_has_its_answer", &[], every_mood_has_its_answer),
        trial("http/a_request_is_done_and_not_answered", &[], a_request_is_done_and_not_answered),
        trial("http/every_error_passes", &[], every_error_passes),
    ]
}

/// A gateway, and receivers that count their requests.
struct Scene {
    gateway: Arc<Gateway>,
    received: Vec<Arc<AtomicU64>>,
    serving: JoinSet<()>,
}

impl Scene {
    async fn open(receivers: usize) -> Result<Self, Failure> {
        let gateway = Arc::new(Gateway::start().await?);
        let mut scene = Self { gateway, received: Vec::new(), serving: JoinSet::new() };
        for _ in 0..receivers {
            let listener = TcpListener::bind("127.0.0.1:0").await?;
            let port = listener.local_addr()?.port();
            let received = Arc::new(AtomicU64::new(0));
            scene.received.push(Arc::clone(&received));
            scene.serving.spawn(serve(listener, received));
            let registered = scene.post(&format!("{REGISTER}topic/{port}")).await?;
            assert!(registered.starts_with("HTTP/1.1 204"), "{registered}");
        }
        Ok(scene)
    }

    /// Posts a request. Returns the answer, as far as it comes within two seconds.
    async fn post(&self, path: &str) -> Result<String, Failure> {
        let mut stream = TcpStream::connect(self.gateway.address()).await?;
        let head =
            format!("POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\nconnection: close\r\n\r\nbody");
        stream.write_all(head.as_bytes()).await?;
        let mut answer = Vec::new();
        // A connection that is cut has no answer, and neither has one that hangs.
        let _ = tokio::time::timeout(Duration::from_secs(2), stream.read_to_end(&mut answer)).await;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }

    fn received(&self) -> Vec<u64> {
        self.received.iter().map(|received| received.load(Relaxed)).collect()
    }
}

/// Answers each request with 204.
async fn serve(listener: TcpListener, received: Arc<AtomicU64>) {
    while let Ok((mut stream, _)) = listener.accept().await {
        let mut request = Vec::new();
        let mut some = [0; 1_024];
        while !request.ends_with(b"body") {
            match stream.read(&mut some).await {
                Ok(count) if count > 0 => request.extend_from_slice(&some[..count]),
                _ => break,
            }
        }
        received.fetch_add(1, Relaxed);
        // The gateway may have gone.
        let _ = stream.write_all(b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n").await;
    }
}

/// Goal: a receiver that has gone is left out, and the others get its requests. Oracle: what each
/// of them received.
async fn requests_go_to_the_receivers_in_turn(_: Stage) -> Outcome {
    let mut scene = Scene::open(2).await?;
    for _ in 0..4 {
        assert!(scene.post("/topic").await?.starts_with("HTTP/1.1 204"));
    }
    assert_eq!(scene.received(), [2, 2]);
    assert!(scene.post("/other").await?.starts_with("HTTP/1.1 502"), "it has no receiver");
    scene.serving.shutdown().await;
    assert!(scene.post("/topic").await?.starts_with("HTTP/1.1 502"));
    Ok(())
}

async fn every_mood_has_its_answer(_: Stage) -> Outcome {
    let scene = Scene::open(1).await?;
    for (mood, expected) in [
        (Mood::Failing(1.0), "HTTP/1.1 500"),
        (Mood::Early(1.0), "HTTP/1.1 503"),
        (Mood::Denied(1.0), "HTTP/1.1 401"),
        (Mood::Redirected(1.0), "HTTP/1.1 307"),
        (Mood::Cut(1.0), ""),
        (Mood::Hanging, ""),
    ] {
        scene.gateway.set(mood);
        let answer = scene.post("/topic").await?;
        assert!(
            answer.starts_with(expected) && answer.is_empty() == expected.is_empty(),
            "{mood:?}: {answer}"
        );
    }
    scene.gateway.set(Mood::Later(1.0));
    let later = scene.post("/topic").await?;
    assert!(later.contains("retry-after: 1"), "{later}");
    assert_eq!(scene.received(), [0], "none of them reached a receiver");
    scene.gateway.set(Mood::Slow);
    assert!(scene.post("/topic").await?.starts_with("HTTP/1.1 204"));
    Ok(())
}

async fn a_request_is_done_and_not_answered(_: Stage) -> Outcome {
    let scene = Scene::open(1).await?;
    for (mood, received) in [(Mood::Lost(1.0), 1), (Mood::Silent(1.0), 2)] {
        scene.gateway.set(mood);
        assert_eq!(scene.post("/topic").await?, "", "{mood:?}");
        assert_eq!(scene.received(), [received], "{mood:?}");
    }
    Ok(())
}

async fn every_error_passes(test: Stage) -> Outcome {
    let scene = Scene::open(1).await?;
    let mut stage = empty(&test);
    stage.broker.endpoint = Some(Arc::clone(&scene.gateway));
    for mut fault in HttpErrors::all() {
        heal(&mut fault, &stage).await?;
        inject(&mut fault, &stage, 1).await?;
        let before = scene.gateway.spoilt();
        while scene.gateway.spoilt() == before {
            // The outcome depends on the fault.
            drop(scene.post("/topic").await);
        }
        heal(&mut fault, &stage).await?;
        assert!(scene.post("/topic").await?.starts_with("HTTP/1.1 204"));
    }
    Ok(())
}
