//! RabbitMQ behind tokens of OAuth 2, which expire. The cases have their own broker, whose plugin
//! `rabbitmq_auth_backend_oauth2` checks the tokens.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use ::brokers::rabbitmq::{Admin, Config, Connector, QueueOptions, Subscriber};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use conformance::consuming::{WAIT, receive, settle};
use conformance::sample;
use message::{Connector as _, Fault, Publisher, Receipts, Submission, Subscription, Ticket};
use tests::brokers::Rabbitmq;
use tests::issuer::{Issuer, Manner, TokenKey};
use tests::rabbitmq_node::RabbitmqNode;
use tests::tls::Shown;
use tests::{Failure, Outcome, Stage, brokers, eventually};
use tokio::sync::mpsc;
use tokio::time::sleep;

tests::cases! { "tokens/{on}/{case}":
    night rabbitmq + xtask {
        a_token_that_is_replaced_in_time_ends_no_connection = replaced,
        a_token_that_is_not_valid_is_refused_by_name = invalid,
        tokens_of_an_issuer_are_replaced_on_their_connections = renewed,
        an_issuer_that_fails_is_named_at_the_login = unissued,
    }
}

/// The key with which the tokens are signed.
const KEY: &[u8] = b"a key of thirty-two bytes or more";

/// How long the first token is valid.
const SHORT: Duration = Duration::from_secs(24);

/// Returns a token that expires at this time, signed with this key.
fn signed(expires_at: SystemTime, key: &[u8]) -> Result<String, Failure> {
    let expires_at = expires_at.duration_since(SystemTime::UNIX_EPOCH)?.as_secs();
    TokenKey::shared(key).for_rabbitmq(None, expires_at)
}

/// Replaces the file with a token, as an agent does.
fn write(file: &Path, token: &str) -> Outcome {
    let aside = file.with_extension("new");
    std::fs::write(&aside, token)?;
    Ok(std::fs::rename(aside, file)?)
}

/// Returns the settings of a client whose token is in a file.
fn config(node: &RabbitmqNode, file: &Path) -> Config {
    let mut config = brokers::patient_rabbitmq(&format!("amqp://{}/%2f", node.address()));
    config.username = Some(String::from("relay"));
    config.password_file = Some(PathBuf::from(file));
    config
}

/// A publishing session and its receipts.
struct Session {
    publisher: Box<dyn Publisher>,
    received: mpsc::UnboundedReceiver<message::Receipt>,
}

impl Session {
    async fn open(config: &Config) -> Result<Self, Failure> {
        let (receipts, received) = Receipts::channel();
        Ok(Self { publisher: Connector::new(config)?.connect(receipts).await?, received })
    }

    /// Publishes one message, and returns its outcome.
    async fn publish(&mut self, queue: &str) -> Result<Result<(), message::PublishError>, Failure> {
        let submission = Submission { ticket: Ticket(1), message: sample::complete(queue)?.into() };
        self.publisher.submit(vec![submission]).await;
        Ok(self.received.recv().await.ok_or("no receipt")?.outcome.map(drop))
    }
}

/// Goal: a token expires during a session. Where its file was replaced before, the connections of
/// publisher and consumer continue with the new one; where it was not, the broker refuses what
/// follows. Oracle: one session each publishes and consumes after the expiry; the other session is
/// refused, so the expiry mattered.
async fn replaced(stage: Stage) -> Outcome {
    let node = RabbitmqNode::start_with_tokens(&stage, URL_SAFE_NO_PAD.encode(KEY)).await?;
    let queue = stage.unique("orders");
    let admin = Admin::connect(&brokers::patient_rabbitmq(&node.url())).await?;
    admin.declare_queue(&queue, QueueOptions::default()).await?;
    let expires_at = SystemTime::now() + SHORT;
    let short = signed(expires_at, KEY)?;
    let renewed = stage.folder().join("renewed");
    let forgotten = stage.folder().join("forgotten");
    write(&renewed, &short)?;
    write(&forgotten, &short)?;
    let mut kept = Session::open(&config(&node, &renewed)).await?;
    let mut lost = Session::open(&config(&node, &forgotten)).await?;
    let mut member: Box<dyn Subscription> =
        Subscriber::new(&config(&node, &renewed), [queue.clone()])?.subscribe().await?;
    kept.publish(&queue).await??;
    lost.publish(&queue).await??;
    let deliveries = receive(&mut member, 2).await?;
    settle(&mut member, &deliveries).await?;

    write(&renewed, &signed(expires_at + Duration::from_secs(3600), KEY)?)?;
    sleep(expires_at.duration_since(SystemTime::now()).unwrap_or_default()).await;
    eventually("the broker refuses an expired token", || async {
        Ok(Session::open(&config(&node, &forgotten)).await.is_err().then_some(()))
    })
    .await?;
    // A channel that has published keeps its permission until the broker's next round, after at
    // most a minute.
    let refused = tokio::time::timeout(Duration::from_secs(120), async {
        loop {
            if let Err(error) = lost.publish(&queue).await? {
                return Ok::<_, Failure>(error);
            }
            sleep(WAIT).await;
        }
    });
    let refused = refused.await??;
    let mut publishes = 0;
    for _ in 0..20 {
        kept.publish(&queue).await??;
        publishes += 1;
        sleep(WAIT).await;
    }
    let deliveries = receive(&mut member, publishes).await?;
    settle(&mut member, &deliveries).await?;
    let text = refused.to_string();
    assert!(!text.contains(&short), "{text}");
    member.close().await?;
    admin.close().await;
    Ok(())
}

/// Goal: a token that has expired, one of another issuer, and a text that is not a token are
/// refused at the login, and the error says what is known of the token, not the token. Oracle: the
/// operator's fault, the words, no part of the token.
async fn invalid(stage: Stage) -> Outcome {
    let node = RabbitmqNode::start_with_tokens(&stage, URL_SAFE_NO_PAD.encode(KEY)).await?;
    let now = SystemTime::now();
    let hour = Duration::from_secs(3600);
    let file = stage.folder().join("token");
    for (token, part) in [
        (signed(now - hour, KEY)?, "the token in rabbitmq.password expired 1h"),
        (
            signed(now + hour, b"the key of another issuer of tokens")?,
            "check user name, password and permissions",
        ),
        (String::from("CANARY.CANARY.CANARY"), "check user name, password and permissions"),
    ] {
        write(&file, &token)?;
        let (receipts, _) = Receipts::channel();
        let refused = Connector::new(&config(&node, &file))?.connect(receipts).await;
        let error = refused.err().ok_or("the broker accepts a token that is not valid")?;
        let text = error.to_string();
        assert_eq!(error.fault(), Fault::Operator, "{text}");
        assert!(text.contains(part) && !text.contains(&token), "{text}");
        assert!(token.split('.').all(|secret| !text.contains(secret)), "{text}");
    }
    Ok(())
}

/// Returns a node, and an issuer whose tokens it accepts.
async fn issued(stage: &Stage) -> Result<(RabbitmqNode, Issuer), Failure> {
    let node = RabbitmqNode::start_with_tokens(stage, URL_SAFE_NO_PAD.encode(KEY)).await?;
    let issuer = Issuer::start_with(stage, Shown::Good, TokenKey::shared(KEY)).await?;
    Ok((node, issuer))
}

/// Goal: tokens of an issuer that live for seconds are replaced on the connections of a publisher
/// and of a consumer, also those of an issuer whose clock is ahead. Oracle: one session each
/// publishes and consumes until the broker has refused a session whose token was not replaced, and
/// until each of the others has been given a token twice more.
async fn renewed(stage: Stage) -> Outcome {
    let (node, issuer) = issued(&stage).await?;
    issuer.set_lifetime(SHORT);
    let broker = Rabbitmq::with_tokens(&stage, &node, issuer.client());
    let queue = stage.unique("orders");
    let admin = Admin::connect(&brokers::patient_rabbitmq(&node.url())).await?;
    admin.declare_queue(&queue, QueueOptions::default()).await?;
    let forgotten = stage.folder().join("forgotten");
    write(&forgotten, &signed(SystemTime::now() + SHORT, KEY)?)?;
    let mut lost = Session::open(&config(&node, &forgotten)).await?;
    lost.publish(&queue).await??;
    let mut kept = Session::open(&broker.client()).await?;
    issuer.set_manner(Manner::Ahead);
    let mut member = Subscriber::new(&broker.client(), [queue.clone()])?.subscribe().await?;
    let mut waiting = 1;
    let rounds = tokio::time::timeout(Duration::from_secs(180), async {
        let mut is_refused = false;
        while !is_refused || issuer.granted() < 6 {
            if !is_refused {
                is_refused = lost.publish(&queue).await?.is_err();
                waiting += usize::from(!is_refused);
            }
            kept.publish(&queue).await??;
            let deliveries = receive(&mut member, waiting + 1).await?;
            settle(&mut member, &deliveries).await?;
            waiting = 0;
            sleep(WAIT).await;
        }
        Ok::<_, Failure>(())
    });
    rounds.await??;
    kept.publish(&queue).await??;
    let deliveries = receive(&mut member, 1).await?;
    settle(&mut member, &deliveries).await?;
    member.close().await?;
    admin.close().await;
    Ok(())
}

/// Goal: an issuer that hangs, that refuses the client, or whose clock is behind is named at the
/// login, within its time limit and without a secret; a token that the broker refuses is named by
/// its owner. Oracle: the errors of the real broker and of the issuer; a login when all is well.
async fn unissued(stage: Stage) -> Outcome {
    let (node, issuer) = issued(&stage).await?;
    let limit = 1_000;
    let client = Rabbitmq::with_tokens(&stage, &node, issuer.client().timeout_ms(limit)).client();
    let foreign = TokenKey::shared(b"the key of another issuer of tokens");
    let other = Issuer::start_with(&stage, Shown::Good, foreign).await?;
    let error_of = |config: Config| async move {
        let opened = Session::open(&config).await;
        opened.err().map(|error| error.to_string()).ok_or_else(|| Failure::from("let in"))
    };
    issuer.set_manner(Manner::Silent);
    let text = error_of(client.clone()).await?;
    assert!(text.contains("rabbitmq.oauth") && text.contains("within 1000 ms; "), "{text}");
    issuer.set_manner(Manner::Behind);
    let text = error_of(client.clone()).await?;
    assert!(text.contains("compare the clocks of this machine and of its issuer"), "{text}");
    issuer.set_known(false);
    let text = error_of(client.clone()).await?;
    assert!(text.contains("refuses the client") && text.contains("invalid_client"), "{text}");
    issuer.set_known(true);
    let text = error_of(Rabbitmq::with_tokens(&stage, &node, other.client()).client()).await?;
    let told = "the token of outbox from rabbitmq.oauth";
    assert!(text.contains(told) && text.contains("check that rabbitmq trusts the issuer's key"), "{text}");
    assert!(!text.contains("eyJ"), "{text}");
    issuer.set_manner(Manner::Honest);
    Session::open(&client).await.map(drop)
}
