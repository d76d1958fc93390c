//! OpenTelemetry: the spans of a producer, the real relay and a consumer, and the relay's metrics,
//! as a collector receives them.

use std::time::{Duration, Instant};

use inbox::{Consumer, HandlerError, Inbox, InboxOptions, Shutdown};
use message::Message;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_otlp::{Protocol, WithExportConfig as _};
use opentelemetry_proto::tonic::metrics::v1::{Metric, metric::Data};
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use outbox::Outbox;
use outbox_toolkit::otel::{CurrentSpan, Joined};
use sqlx::Postgres;
use tests::collector::{Collector, int, text};
use tests::relay_process::{Config, relay};
use tests::workload::Workload;
use tests::{Backend, Failure, Outcome, RelayProcess, Stage, brokers, eventually};
use tokio::sync::oneshot;
use tracing::Instrument as _;
use tracing::instrument::WithSubscriber as _;
use tracing_subscriber::Registry;
use tracing_subscriber::layer::SubscriberExt as _;

const RELAY: &str = "orders";
const SECRET: &str = "a-payload-that-no-span-may-hold";

tests::cases! { "{case}":
    anywhere + postgres kafka {
        producer_relay_and_consumer_are_linked_in_a_collector = linked_spans,
        a_collector_that_is_away_disturbs_nothing = collector_away,
        a_collector_that_cannot_be_used_ends_the_start = refused,
    }
}

/// A service whose spans the OpenTelemetry SDK exports.
struct Service(SdkTracerProvider);

impl Service {
    fn new(name: &'static str, collector: &Collector) -> Result<Self, Failure> {
        let exporter = opentelemetry_otlp::SpanExporter::builder()
            .with_http()
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(format!("{}/v1/traces", collector.endpoint()))
            .build()?;
        let resource = Resource::builder().with_service_name(name).build();
        let provider = SdkTracerProvider::builder().with_resource(resource).with_batch_exporter(exporter);
        Ok(Self(provider.build()))
    }

    fn subscriber(&self) -> impl tracing::Subscriber + Send + Sync + 'static {
        Registry::default().with(tracing_opentelemetry::layer().with_tracer(self.0.tracer("test")))
    }

    /// Sends the remaining spans.
    async fn flush(self) -> Outcome {
        tokio::task::spawn_blocking(move || self.0.shutdown()).await??;
        Ok(())
    }
}

/// Runs a future and all tasks that it spawns on a thread with this subscriber, because tasks do
/// not inherit the subscriber from the task that spawned them.
fn on_a_thread<F>(
    subscriber: impl tracing::Subscriber + Send + Sync + 'static,
    work: F,
) -> oneshot::Receiver<F::Output>
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    let (done, running) = oneshot::channel();
    std::thread::spawn(move || {
        let _guard = tracing::subscriber::set_default(subscriber);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        if let Ok(runtime) = runtime {
            // The receiver was dropped if the case has failed.
            let _ = done.send(runtime.block_on(work));
        }
    });
    running
}

async fn applied(_: &mut inbox::Tx, _: &Message) -> Result<(), HandlerError> {
    Ok(())
}

/// Appends the section for a collector.
fn exporting(stage: &Stage, config: &Config, endpoint: &str, more: &str) -> Result<Config, Failure> {
    let text = std::fs::read_to_string(config.path())?;
    let section = format!("[otlp]\nendpoint = {endpoint:?}\nmetrics_interval = \"1s\"\n{more}");
    Config::text(stage, &format!("{text}{section}"))
}

/// Goal: the path of one message can be followed. The producer's context is stored with the
/// message, the relay's span is linked to the producer's span, and the consumer's span is a child
/// of the producer's. Metrics arrive as well, but no payload does. Oracle: the data that a
/// collector received, with a producer and a consumer that use the OpenTelemetry SDK itself.
async fn linked_spans(stage: Stage) -> Outcome {
    let workload = Workload::<Postgres>::open(&stage, brokers::open(&stage, Backend::Kafka).await?).await?;
    let collector = Collector::start().await?;
    let url = workload.database.relay_url()?;
    let config = Config::write(&stage, RELAY, &url, workload.broker.as_ref(), "")?;
    let headers = "headers = { authorization = \"Bearer s3cret\" }\nservice_name = \"the-relay\"\n";
    let config = exporting(&stage, &config, collector.endpoint(), headers)?;
    let producer = Service::new("the-producer", &collector)?;
    let outbox: Outbox<Postgres> = Outbox::builder().capture(CurrentSpan).build();
    let place = async {
        let mut tx = workload.begin().await?;
        let message = workload.message("k-1", 1).payload(SECRET);
        let id = outbox.enqueue(&mut tx, message).await?.message_id();
        tx.commit().await?;
        Ok::<_, Failure>(id)
    };
    let id = async { place.instrument(tracing::info_span!("place order")).await }
        .with_subscriber(producer.subscriber())
        .await?;
    producer.flush().await?;

    // The relay retries if the collector is briefly busy.
    collector.turn_away(1);
    let process = RelayProcess::start(&stage, &config)?;
    process.tells("exporting to OpenTelemetry").await?;
    let service = Service::new("the-consumer", &collector)?;
    let shutdown = Shutdown::new();
    let broker = std::sync::Arc::clone(&workload.broker);
    let topic = workload.topic.clone();
    let subscriber = move || {
        let (broker, topic) = (std::sync::Arc::clone(&broker), topic.clone());
        async move {
            let opened = broker.join("tracing", &topic).await;
            opened.map_err(|error| message::SubscriptionError::lost(error.to_string()))
        }
    };
    let inbox = Inbox::open(workload.database.consumer.clone(), InboxOptions::default()).await?;
    let consumer = Consumer::builder(inbox, "billing")
        .join_traces(Joined)
        .maintain_interval(None)
        .on_message("order.placed", applied)
        .subscribe(subscriber)
        .build()?;
    let running = on_a_thread(service.subscriber(), consumer.run(shutdown.clone()));

    let name = format!("send {}", workload.topic);
    let sent = eventually("the relay's span arrives", || async {
        Ok(collector.spans("the-relay").into_iter().find(|span| span.name == name))
    })
    .await?;
    // The consumer's exporter sends every five seconds.
    let name = format!("process {}", workload.topic);
    let processed = eventually("the consumer's span arrives", || async {
        Ok(collector.spans("the-consumer").into_iter().find(|span| span.name == name))
    })
    .await?;
    shutdown.graceful.cancel();
    running.await??;
    service.flush().await?;

    let placed = collector.spans("the-producer").into_iter().find(|span| span.name == "place order");
    let placed = placed.ok_or("the producer's span is missing")?;
    assert_linked(&sent, &placed);
    let attribute = |key: &str| text(&sent.attributes, key);
    assert_eq!(attribute("messaging.system").as_deref(), Some("kafka"));
    assert_eq!(attribute("messaging.operation.name").as_deref(), Some("send"));
    assert_eq!(attribute("messaging.destination.name").as_deref(), Some(workload.topic.as_str()));
    assert_eq!(attribute("messaging.message.id"), Some(id.to_string()));
    assert_eq!(attribute("messaging.kafka.message.key").as_deref(), Some("k-1"));
    assert_eq!(attribute("outbox.relay").as_deref(), Some(RELAY));
    assert_eq!(int(&sent.attributes, "outbox.attempt"), Some(1));
    assert_eq!(int(&sent.attributes, "messaging.message.body.size"), Some(SECRET.len() as i64));
    assert_eq!((&processed.trace_id, &processed.parent_span_id), (&placed.trace_id, &placed.span_id));
    assert_eq!(processed.kind, 5, "a consumer's span");
    assert_eq!(text(&processed.attributes, "messaging.message.id"), Some(id.to_string()));

    let published = eventually("the relay's metrics arrive", || async {
        let found = collector.metrics().into_iter().rev().find(|one| one.name == "relay_published_total");
        Ok(found.filter(|metric| sum(metric) == Some(1.0)))
    })
    .await?;
    assert!(published.description.contains("confirmed"), "{published:?}");
    let latest = |name: &str| collector.metrics().into_iter().rev().find(|metric| metric.name == name);
    let Some(Data::Histogram(took)) = latest("relay_publish_seconds").and_then(|metric| metric.data) else {
        return Err("no histogram".into());
    };
    assert_eq!(took.data_points[0].count, 1);
    assert!(latest("relay_backlog_messages").is_some(), "gauges of the database are looked at");

    assert_eq!(collector.authorization().as_deref(), Some("Bearer s3cret"));
    assert!(!collector.has_seen(SECRET.as_bytes()), "a payload was exported");
    process.stop().await
}

fn sum(metric: &Metric) -> Option<f64> {
    use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value;
    let Some(Data::Sum(sum)) = &metric.data else { return None };
    match sum.data_points.first()?.value? {
        Value::AsDouble(number) => Some(number),
        Value::AsInt(_) => None,
    }
}

/// Checks that the relay's span has its own trace, and is linked to the producer's span.
fn assert_linked(sent: &Span, placed: &Span) {
    assert_eq!(sent.kind, 3, "a client's span");
    assert!(sent.parent_span_id.is_empty() && sent.trace_id != placed.trace_id, "{sent:?}");
    let [link] = &sent.links[..] else { panic!("one link: {sent:?}") };
    assert_eq!((&link.trace_id, &link.span_id), (&placed.trace_id, &placed.span_id));
    assert!(sent.end_time_unix_nano > sent.start_time_unix_nano, "{sent:?}");
    assert!(sent.start_time_unix_nano > placed.start_time_unix_nano, "{sent:?}");
}

/// Goal: a collector that does not answer costs only the data meant for it. Oracle: everything is
/// published, one warning, and a stop within the bound while connections hang.
async fn collector_away(stage: Stage) -> Outcome {
    let workload = Workload::<Postgres>::open(&stage, brokers::open(&stage, Backend::Kafka).await?).await?;
    // The system's backlog accepts connections, but nothing answers them.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let endpoint = format!("http://{}", silent.local_addr()?);
    let url = workload.database.relay_url()?;
    let config = Config::write(&stage, RELAY, &url, workload.broker.as_ref(), "")?;
    let config = exporting(&stage, &config, &endpoint, "timeout = \"500ms\"\n")?;
    let relay = RelayProcess::start(&stage, &config)?;
    let consumer = workload.consume().await?;
    workload.place_many(5, 25).await?;
    relay.tells("the collector does not accept data, so it is dropped").await?;
    workload.place_many(5, 25).await?;
    workload.settled().await?;
    consumer.stop().await?;
    let begun = Instant::now();
    relay.stop().await?;
    assert!(begun.elapsed() < Duration::from_secs(9), "{:?}", begun.elapsed());
    Ok(())
}

/// Goal: bad settings of the export are reported at the start, by name and without secrets. Oracle:
/// exit code and text of the real program.
async fn refused(stage: Stage) -> Outcome {
    let workload = Workload::<Postgres>::open(&stage, brokers::open(&stage, Backend::Kafka).await?).await?;
    let url = workload.database.relay_url()?;
    let plain = Config::write(&stage, RELAY, &url, workload.broker.as_ref(), "")?;
    for (endpoint, told) in [
        ("http://collector.example:4318", "allow_plaintext"),
        ("https://user:s3cret@collector.example", "contains credentials"),
    ] {
        let config = exporting(&stage, &plain, endpoint, "")?;
        let path = config.path().to_str().ok_or("the path is not UTF-8")?;
        let output = relay(&["run", "--config", path]).await?;
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains("otlp.endpoint") && text.contains(told) && !text.contains("s3cret"), "{text}");
    }
    let config = exporting(&stage, &plain, "http://127.0.0.1:4318", "headers = { x-key = \"s3cret\" }\n")?;
    let path = config.path().to_str().ok_or("the path is not UTF-8")?;
    let output = relay(&["config", "show", "--config", path]).await?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("otlp.headers.x-key") && !text.contains("s3cret"), "{text}");
    Ok(())
}
