//! A web service with an inbox behind it: a real process that the real relay posts to, and requests
//! of a client that signs them by itself.

use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use axum::body::Body;
use axum::http::Request;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, Mac as _};
use message::MessageId;
use sha2::Sha256;
use sqlx::Postgres;
use tests::relay_process::{Config, RelayProcess, relay};
use tests::{Database, Failure, Outcome, Stage};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::client::send;
use crate::producing::PLACED;
use crate::program::{self, Running};

/// Lets the system choose.
const ANY_PORT: &str = "127.0.0.1:0";

/// Where the example ends in a test: its effect is committed, its answer is not sent.
const BEFORE_ANSWER: &str = "webhook_receiver::before_answer";

/// The secret of the services, and another one. 32 bytes each.
const SECRET: &[u8; 32] = b"0123456789abcdef0123456789abcdef";
const OTHER_SECRET: &[u8; 32] = b"fedcba9876543210fedcba9876543210";

/// More than the five minutes for which a signature is accepted.
const SIX_MINUTES: Duration = Duration::from_secs(360);

tests::cases! { "webhook_receiver/postgres/{case}":
    postgres {
        a_kill_between_commit_and_answer_has_no_second_effect = killed,
        a_repeated_request_has_no_second_effect = repeated,
        what_cannot_be_trusted_is_answered_with_401 = untrusted,
        what_can_never_be_handled_is_answered_with_422 = refused,
        a_failure_of_the_receiver_is_not_the_messages_fault = failing,
    }
}

/// A database and a secret, which relay and receiver share.
struct Shop {
    stage: Stage,
    database: Database<Postgres>,
    secret: PathBuf,
}

impl Shop {
    async fn open(stage: Stage) -> Result<Self, Failure> {
        let database = Database::<Postgres>::empty(&stage).await?;
        let secret = stage.folder().join("webhook-secret");
        std::fs::write(&secret, format!("whsec_{}\n", STANDARD.encode(SECRET)))?;
        Ok(Self { stage, database, secret })
    }

    /// Starts the receiver on an address. With a crash point, the process ends there.
    async fn receive(&self, address: &str, crash_point: Option<&str>) -> Result<Running, Failure> {
        let secret = self.secret.to_str().ok_or("the path is no text")?;
        let mut settings = vec![("DATABASE_URL", self.database.url.as_str()), ("SECRET_FILE", secret)];
        settings.extend(crash_point.map(|point| ("OUTBOX_CRASH_POINTS", point)));
        Running::serve_at(&self.stage, "webhook_receiver", address, &settings).await
    }

    /// Returns what was billed: `<order> <cents>`.
    async fn invoices(&self) -> Result<Vec<String>, Failure> {
        self.database.texts("SELECT order_id || ' ' || cents FROM invoice ORDER BY order_id, id").await
    }

    /// Writes the configuration of a relay that posts the orders to this address.
    fn relay(&self, address: &str) -> Result<Config, Failure> {
        let secret = &self.secret;
        let section = format!(
            "[pipeline.http]\nurl = \"http://{address}/orders\"\nsecret_files = [{secret:?}]\n\
             private_networks = [\"127.0.0.1\"]\n"
        );
        Config::with_section(&self.stage, "orders", &self.database.url, &section, "")
    }
}

/// A request as the relay makes it, in binary mode.
#[derive(Clone)]
struct Post {
    id: MessageId,
    at: SystemTime,
    payload: String,
    secret: &'static [u8; 32],
}

impl Post {
    fn order(order: i64) -> Self {
        let payload = format!("{{\"order\":{order},\"cents\":1250}}");
        Self { id: MessageId::new(), at: SystemTime::now(), payload, secret: SECRET }
    }

    /// Signs the request as Standard Webhooks demand: id, time and body.
    fn signed(&self) -> Result<Request<Body>, Failure> {
        let at = self.at.duration_since(SystemTime::UNIX_EPOCH)?.as_secs();
        let id = self.id;
        let mut mac = Hmac::<Sha256>::new_from_slice(self.secret)?;
        mac.update(format!("{id}.{at}.{}", self.payload).as_bytes());
        let signature = STANDARD.encode(mac.finalize().into_bytes());
        let request = Request::post("/orders")
            .header("host", "billing")
            .header("content-type", "application/json")
            .header("ce-specversion", "1.0")
            .header("ce-id", id.to_string())
            .header("ce-source", "/orders")
            .header("ce-type", "order.placed")
            .header("ce-time", id.generated_at().format(&Rfc3339)?)
            .header("webhook-id", id.to_string())
            .header("webhook-timestamp", at.to_string())
            .header("webhook-signature", format!("v1,{signature}"));
        Ok(request.body(Body::from(self.payload.clone()))?)
    }

    /// Sends it. Returns the status of the answer.
    async fn send(&self, receiver: &Running) -> Result<u16, Failure> {
        Ok(send(&receiver.address, self.signed()?).await?.status.as_u16())
    }
}

/// Goal: a receiver that is killed after its commit, before its answer, bills nothing twice, also
/// when an operator sends everything again. Oracle: the invoices; the relay, which ends when
/// everything is confirmed.
async fn killed(stage: Stage) -> Outcome {
    let shop = Shop::open(stage).await?;
    let printed = program::example("order_service", &[("DATABASE_URL", &shop.database.url)]).await?;
    assert_eq!(printed, PLACED);
    let doomed = shop.receive(ANY_PORT, Some(BEFORE_ANSWER)).await?;
    let address = doomed.address.clone();
    let config = shop.relay(&address)?;
    let mut once = RelayProcess::start_command(&shop.stage, &config, &["run", "--once"])?;
    assert_eq!(doomed.ended().await?.signal(), Some(6), "ended at its crash point");
    // Two requests may have been in flight when the process ended.
    let billed = shop.invoices().await?.len();
    assert!((1..=2).contains(&billed), "committed before it was killed: {billed}");

    let healthy = shop.receive(&address, None).await?;
    let ended = once.ended().await?;
    assert!(ended.success(), "everything is confirmed: {ended}");
    assert_eq!(shop.invoices().await?, ["1 1250", "2 990"]);
    let path = config.path().to_str().ok_or("the path is no text")?;
    let everything = ["--all", "--actor", "ann", "--note", "a test", "--yes"];
    let replayed = relay(&[&["replay", "--config", path], &everything[..]].concat()).await?;
    assert!(replayed.status.success(), "{replayed:?}");
    assert_eq!(shop.invoices().await?, ["1 1250", "2 990"]);
    healthy.kill().await
}

/// Goal: of equal requests, one after the other or at once, one has an effect, and all succeed.
/// Oracle: statuses; invoices.
async fn repeated(stage: Stage) -> Outcome {
    let shop = Shop::open(stage).await?;
    let receiver = shop.receive(ANY_PORT, None).await?;
    let first = Post::order(1);
    assert_eq!(first.send(&receiver).await?, 204);
    // A later attempt of the relay has another time and signature.
    let again = Post { at: first.at - Duration::from_secs(60), ..first.clone() };
    assert_eq!((first.send(&receiver).await?, again.send(&receiver).await?), (200, 200));

    let racing = Post::order(2);
    let answers = futures_util::future::try_join_all((0..20).map(|_| racing.send(&receiver))).await?;
    let fresh = answers.iter().filter(|status| **status == 204).count();
    assert!(fresh == 1 && answers.iter().all(|status| [200, 204].contains(status)), "{answers:?}");
    assert_eq!(shop.invoices().await?, ["1 1250", "2 1250"]);
    receiver.kill().await
}

/// Goal: only a request that was just signed with the secret has an effect. Oracle: status; no
/// invoice, no id in the inbox.
async fn untrusted(stage: Stage) -> Outcome {
    let shop = Shop::open(stage).await?;
    let receiver = shop.receive(ANY_PORT, None).await?;
    let post = Post::order(1);
    let forged = Post { secret: OTHER_SECRET, ..post.clone() };
    let old = Post { at: post.at - SIX_MINUTES, ..post.clone() };
    let ahead = Post { at: post.at + SIX_MINUTES, ..post.clone() };
    let mut requests = vec![forged.signed()?, old.signed()?, ahead.signed()?];
    for name in ["webhook-id", "webhook-timestamp", "webhook-signature"] {
        let mut without = post.signed()?;
        without.headers_mut().remove(name);
        requests.push(without);
    }
    let mut changed = post.signed()?;
    *changed.body_mut() = Body::from("{\"order\":1,\"cents\":1}");
    requests.push(changed);
    let mut renamed = post.signed()?;
    renamed.headers_mut().insert("ce-id", MessageId::new().to_string().parse()?);
    requests.push(renamed);
    for request in requests {
        let told = format!("{request:?}");
        assert_eq!(send(&receiver.address, request).await?.status, 401, "{told}");
    }
    assert_eq!(shop.invoices().await?, [""; 0]);
    assert_eq!(shop.database.integer("SELECT count(*) FROM inbox_message").await?, 0);
    assert_eq!(post.send(&receiver).await?, 204, "the same request, as it was signed");
    receiver.kill().await
}

/// Goal: a message that no repetition helps is answered with 422, so that the relay makes a dead
/// letter of it. Oracle: status; invoices.
async fn refused(stage: Stage) -> Outcome {
    let shop = Shop::open(stage).await?;
    let receiver = shop.receive(ANY_PORT, None).await?;
    let post = Post::order(1);
    assert_eq!(post.send(&receiver).await?, 204);
    let made_at = OffsetDateTime::now_utc() - time::Duration::days(20);
    let too_old = Post { id: MessageId::derived(made_at, ["order 2"])?, ..Post::order(2) };
    let reused = Post { id: post.id, ..Post::order(3) };
    let no_order = Post { payload: String::from("{}"), ..Post::order(4) };
    for post in [&too_old, &reused, &no_order] {
        assert_eq!(post.send(&receiver).await?, 422, "{}", post.payload);
    }
    let mut other_kind = Post::order(5).signed()?;
    other_kind.headers_mut().insert("ce-type", "order.cancelled".parse()?);
    let mut no_type = Post::order(6).signed()?;
    no_type.headers_mut().remove("ce-type");
    for request in [other_kind, no_type] {
        assert_eq!(send(&receiver.address, request).await?.status, 422);
    }
    assert_eq!(shop.invoices().await?, ["1 1250"]);
    receiver.kill().await
}

/// Goal: a failure of the receiver never refuses a message. It is handled when the receiver works
/// again. Oracle: 500 while the database refuses this invoice, 503 while there is no database; the
/// invoices.
async fn failing(stage: Stage) -> Outcome {
    let shop = Shop::open(stage).await?;
    let receiver = shop.receive(ANY_PORT, None).await?;
    let post = Post::order(1);
    shop.database.execute("ALTER TABLE invoice ADD CONSTRAINT paused CHECK (order_id <> 1)").await?;
    assert_eq!(post.send(&receiver).await?, 500);
    assert_eq!(Post::order(2).send(&receiver).await?, 204, "another message is handled");
    shop.database.execute("ALTER TABLE invoice DROP CONSTRAINT paused").await?;
    shop.database.execute("ALTER TABLE inbox_message RENAME TO inbox_message_away").await?;
    assert_eq!(post.send(&receiver).await?, 503);
    shop.database.execute("ALTER TABLE inbox_message_away RENAME TO inbox_message").await?;
    assert_eq!(post.send(&receiver).await?, 204);
    assert_eq!(shop.invoices().await?, ["1 1250", "2 1250"]);
    receiver.kill().await
}
