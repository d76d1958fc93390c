//! The page inside a service: below a prefix, behind the login of the application.

mod client;

use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use brokers::memory::Broker;
use http_body_util::BodyExt as _;
use inbox::{Consumer, HandlerError, Inbox, InboxOptions, Tx};
use message::{Event, EventType, Fault, FaultScope, MaxInFlightPerKey, Message, SizeLimit, Topic};
use outbox::{NewMessage, Outbox};
use outbox_log::{Address, LogOptions};
use outbox_toolkit::{Operator, OperatorRole, PageOptions, Relay, RelayPage};
use serde::Deserialize;
use sqlx::Pool;
use tests::{Database, Dialect, Failure, Outcome, Role, Stage, eventually};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinHandle;

use client::{Answer, Browser, PREFIX, application, options};

tests::cases! { "page/{on}/{case}":
    databases {
        everything_works_below_the_prefix,
        the_application_says_who_decides,
        only_forms_of_the_page_change_something,
        no_header_moves_the_page_or_gives_a_right,
        the_page_ends_with_its_relay_and_lives_without_it,
        a_dead_message_is_corrected_and_requeued,
        a_consumer_of_the_service_says_what_it_waits_for,
    }
}

/// Every address that is read.
const READ: [&str; 14] = [
    "/",
    "/pipeline?name=shipping",
    "/messages",
    "/topics",
    "/held",
    "/dead",
    "/consumers",
    "/keys",
    "/sagas",
    "/audit",
    "/pause?pipeline=shipping",
    "/pause?pipeline=shipping&resume=yes",
    "/nothing",
    "/pipeline?name=unknown",
];

const TOPIC: &str = "parcels";
const ANN: &str = "admin:ann@shop.example";
const EVE: &str = "eve@shop.example";

/// A service with a relay inside, whose broker refuses one message.
struct Service<DB: Dialect> {
    db: Database<DB>,
    pool: Pool<DB>,
    broker: Broker,
    page: RelayPage,
    stop: Option<oneshot::Sender<()>>,
    relay: Option<JoinHandle<()>>,
}

impl<DB: Dialect> Service<DB>
where
    for<'a> Address: From<&'a Pool<DB>>,
{
    async fn start(stage: &Stage, options: PageOptions) -> Result<Self, Failure> {
        let db = Database::<DB>::migrated(stage).await?;
        let pool = outbox::pool::<DB>(&db.relay_url()?).await?;
        let broker = Broker::new();
        let relay = Relay::builder(&pool)
            .name("shipping")
            .connector(broker.connector(MaxInFlightPerKey::Pipelined), SizeLimit::PORTABLE)
            .settings(|settings| settings.attempts_max = 1)
            .build()?;
        let page = relay.page(options.inbox("billing", &pool, LogOptions::default()))?;
        let (stop, stopped) = oneshot::channel::<()>();
        let relay = Some(tokio::spawn(relay.run(async { drop(stopped.await) })));
        Ok(Self { db, pool, broker, page, stop: Some(stop), relay })
    }

    /// Enqueues a message that the broker refuses, and waits until the page shows it as dead.
    async fn with_dead(self) -> Result<Self, Failure> {
        self.broker.faults().refuse_next(1, Fault::Message, FaultScope::Message);
        let message = NewMessage::new(TOPIC).kind("packed").json(&1);
        let mut tx = Outbox::<DB>::new().begin(&self.db.producer).await?;
        tx.enqueue_batch([message]).await?;
        tx.commit().await?;
        let ann = Browser::new(&application(&self.page), ANN);
        eventually("the message is dead", || async {
            let dead = ann.get(&below("/dead")).await?;
            Ok(dead.body.contains("name=\"row\"").then_some(()))
        })
        .await?;
        Ok(self)
    }

    /// Stops the relay, and waits until it has ended.
    async fn stop(&mut self) -> Outcome {
        drop(self.stop.take());
        match self.relay.take() {
            Some(relay) => Ok(relay.await?),
            None => Ok(()),
        }
    }

    async fn end(mut self) -> Outcome {
        self.stop().await?;
        self.page.stop();
        self.pool.close().await;
        Ok(())
    }
}

fn below(path: &str) -> String {
    format!("{PREFIX}{path}")
}

/// Goal: the page works below any prefix, and has no login. Oracle: each address on each page is
/// below the prefix and is answered.
async fn everything_works_below_the_prefix<DB: Dialect>(stage: Stage) -> Outcome
where
    for<'a> Address: From<&'a Pool<DB>>,
{
    let service = Service::<DB>::start(&stage, options(PREFIX)).await?.with_dead().await?;
    let ann = Browser::new(&application(&service.page), ANN);
    let mut forms = 0;
    let story = format!("/message?id={}", service.db.integer("SELECT max(id) FROM outbox_message").await?);
    for path in READ.into_iter().chain([&*story]) {
        let shown = ann.get(&below(path)).await?;
        let is_missing = matches!(path, "/nothing" | "/pipeline?name=unknown");
        assert_eq!(shown.status == StatusCode::NOT_FOUND, is_missing, "{path}: {}", shown.body);
        assert!(shown.value("content-security-policy").starts_with("default-src 'none'"), "{path}");
        let addresses = shown.addresses();
        assert!(addresses.len() > 10, "{path}: {addresses:?}");
        for address in addresses {
            let is_elsewhere = address.starts_with("https://") || address.starts_with('#');
            assert!(is_elsewhere || address.starts_with("/ops/outbox/"), "{path}: {address}");
        }
        let [all, with_token] = shown.forms();
        assert_eq!(all, with_token, "{path}: {}", shown.body);
        assert!(!shown.body.contains("Log out"), "{path}");
        forms += all;
    }
    assert!(forms >= 5, "{forms}");
    // Each address leads somewhere.
    let home = ann.get(PREFIX).await?;
    assert_eq!(home.status, StatusCode::OK);
    for address in home.addresses().into_iter().filter(|it| it.starts_with('/')) {
        let answer = ann.open(&address).await?;
        let expected = match address.rsplit('/').next() {
            // Forms, without their fields.
            Some("confirm") => StatusCode::METHOD_NOT_ALLOWED,
            Some("message") => StatusCode::BAD_REQUEST,
            _ => StatusCode::OK,
        };
        assert_eq!(answer.status(), expected, "{address}");
    }
    // There is no login page, and nothing outside the prefix.
    for path in ["/login", "/login.css", "/logout"] {
        assert_eq!(ann.get(&below(path)).await?.status, StatusCode::NOT_FOUND, "{path}");
        assert_eq!(ann.post(&below(path), &[]).await?.status, StatusCode::FORBIDDEN, "{path}");
    }
    for path in ["/", "/dead", "/ops/outboxes", "/ops"] {
        let answer = ann.get(path).await?;
        assert!(answer.status == StatusCode::NOT_FOUND && answer.body.is_empty(), "{path}");
    }
    // A prefix that the application did not remove is named.
    let twice = ann.get(&below(&below("/dead"))).await?;
    assert!(twice.body.contains("remove /ops/outbox from paths"), "{}", twice.body);
    service.end().await?;
    at_the_root::<DB>(stage).await
}

async fn at_the_root<DB: Dialect>(stage: Stage) -> Outcome
where
    for<'a> Address: From<&'a Pool<DB>>,
{
    let service = Service::<DB>::start(&stage, options("")).await?;
    let ann = Browser::new(&application(&service.page), ANN);
    let shown = ann.get("/pipeline?name=shipping").await?;
    assert_eq!(shown.status, StatusCode::OK);
    assert!(shown.addresses().contains(&String::from("/assets/page.css")));
    assert!(shown.value("set-cookie").contains("; Path=/; "), "{}", shown.value("set-cookie"));
    service.end().await
}

/// Sends the decision to requeue all dead messages. Returns the answers of both steps.
async fn requeue(browser: &Browser, token: &str) -> Result<(Answer, Option<Answer>), Failure> {
    let fields = [("what", "requeue-all"), ("form_token", token)];
    let asked = browser.post(&below("/dead/confirm"), &fields).await?;
    if asked.status != StatusCode::OK {
        return Ok((asked, None));
    }
    let fields = [
        ("what", "requeue-all"),
        ("reason", "the scale is repaired"),
        ("form_token", asked.field("form_token")?),
        ("decision", asked.field("decision")?),
        ("at", asked.field("at")?),
    ];
    let decided = browser.post(&below("/dead/decide"), &fields).await?;
    Ok((asked, Some(decided)))
}

/// Goal: the application names the operator and the rights, and the audit has that name. Oracle:
/// the rows of the audit, and the message at the broker.
async fn the_application_says_who_decides<DB: Dialect>(stage: Stage) -> Outcome
where
    for<'a> Address: From<&'a Pool<DB>>,
{
    let service = Service::<DB>::start(&stage, options(PREFIX)).await?.with_dead().await?;
    let application = application(&service.page);
    let nobody = Browser::new(&application, "").get(PREFIX).await?;
    assert_eq!(nobody.status, StatusCode::FORBIDDEN);
    for told in ["did not name the operator", "log in to the application", "/ops/outbox/assets/page.css"] {
        assert!(nobody.body.contains(told), "{told}: {}", nobody.body);
    }
    assert!(!nobody.body.contains("shipping") && nobody.value("set-cookie").is_empty());
    // A viewer sees it, without buttons, and may not decide.
    let eve = Browser::new(&application, EVE);
    let seen = eve.get(&below("/dead")).await?;
    assert!(seen.body.contains(TOPIC) && seen.body.contains(EVE), "{}", seen.body);
    assert_eq!(seen.forms(), [0, 0]);
    // Not even with the form token of an operator who uses the same browser.
    let mut shared = Browser::new(&application, ANN);
    let of_ann = shared.get(&below("/dead")).await?.field("form_token")?.to_owned();
    shared.becomes(EVE);
    let refused = requeue(&shared, &of_ann).await?.0;
    assert_eq!(refused.status, StatusCode::FORBIDDEN);
    assert!(refused.body.contains("for another user; nothing was changed"), "{}", refused.body);
    // The name alone does not make an operator.
    shared.becomes("ann@shop.example");
    let refused = requeue(&shared, &of_ann).await?.0;
    assert_eq!(refused.status, StatusCode::FORBIDDEN);
    assert!(refused.body.contains("has the role viewer and may not"), "{}", refused.body);
    assert_eq!(service.db.integer("SELECT count(*) FROM outbox_audit").await?, 0);
    // The operator decides.
    shared.becomes(ANN);
    let decided = requeue(&shared, &of_ann).await?.1.ok_or("not asked for a reason")?;
    assert_eq!(decided.status, StatusCode::SEE_OTHER, "{}", decided.body);
    let result = decided.value("location").to_owned();
    assert!(result.starts_with("/ops/outbox/decision?"), "{result}");
    assert_eq!(shared.get(&result).await?.status, StatusCode::OK);
    service.broker.stored(&Topic::new(TOPIC)?, 1).await;
    let actors = service.db.texts("SELECT actor FROM outbox_audit").await?;
    assert_eq!(actors, ["ann@shop.example"]);
    let audit = eve.get(&below("/audit")).await?;
    assert!(audit.body.contains("ann@shop.example") && audit.body.contains("the scale is repaired"));
    // A decision that leads back to a page of the prefix.
    let token = shared.get(&below("/pause?pipeline=shipping")).await?.field("form_token")?.to_owned();
    let fields = [("pipeline", "shipping"), ("scope", "topic"), ("name", TOPIC), ("reason", "moving house")];
    let fields = [&fields[..], &[("from", "topics"), ("form_token", &*token)]].concat();
    let paused = shared.post(&below("/pause"), &fields).await?;
    assert_eq!((paused.status, paused.value("location")), (StatusCode::SEE_OTHER, "/ops/outbox/topics"));
    let actors = service.db.texts("SELECT actor FROM outbox_operation").await?;
    assert_eq!(actors, ["ann@shop.example"]);
    // Before ending a pause, an operator reads whose it is, and why it was set.
    let form =
        format!("/pause?pipeline=shipping&scope=topic&name={TOPIC}&resume=yes&since=2026-01-01T00:00:00Z");
    let form = shared.get(&below(&form)).await?;
    assert!(form.body.contains("moving house") && form.body.contains("ann@shop.example"), "{}", form.body);
    service.end().await
}

/// Goal: neither another site nor another page of the application's site can submit a form. Oracle:
/// the answers, and an empty audit.
async fn only_forms_of_the_page_change_something<DB: Dialect>(stage: Stage) -> Outcome
where
    for<'a> Address: From<&'a Pool<DB>>,
{
    let service = Service::<DB>::start(&stage, options(PREFIX)).await?.with_dead().await?;
    let application = application(&service.page);
    let ann = Browser::new(&application, ANN);
    let first = ann.get(&below("/dead")).await?;
    let cookie = first.value("set-cookie");
    assert!(cookie.ends_with("; Path=/ops/outbox; HttpOnly; SameSite=Lax"), "{cookie}");
    assert!(ann.get(&below("/dead")).await?.value("set-cookie").is_empty(), "one key for a browser");
    let token = first.field("form_token")?.to_owned();
    let changes: [(&str, &[(&str, &str)]); 8] = [
        ("/dead/confirm", &[("what", "requeue-all")]),
        ("/message/payload", &[("id", "1"), ("reason", "forged")]),
        ("/message/edit", &[("id", "1"), ("reason", "forged")]),
        ("/message/edit/decide", &[("pipeline", "shipping"), ("place", "1"), ("reason", "forged")]),
        ("/message/edit/content", &[("pipeline", "shipping"), ("number", "1"), ("reason", "forged")]),
        ("/pause", &[("pipeline", "shipping"), ("scope", "pipeline"), ("reason", "forged")]),
        ("/keys/decide", &[("what", "release"), ("reason", "forged")]),
        ("/saga/decide", &[("what", "retry"), ("reason", "forged")]),
    ];
    let other = Browser::new(&application, ANN).get(&below("/dead")).await?.field("form_token")?.to_owned();
    for (path, fields) in changes {
        // Without a token, with a broken one, and with that of another browser.
        for forged in [None, Some(""), Some("AAAA"), Some(&*other)] {
            let proof = forged.map(|token| ("form_token", token));
            let fields: Vec<_> = fields.iter().copied().chain(proof).collect();
            let refused = ann.post(&below(path), &fields).await?;
            assert_eq!(refused.status, StatusCode::FORBIDDEN, "{path} {forged:?}");
            assert!(refused.body.contains("nothing was changed"), "{path}: {}", refused.body);
        }
        let fields: Vec<_> = fields.iter().copied().chain([("form_token", &*token)]).collect();
        for origin in ["https://evil.example", "https://other.shop.example", "null"] {
            let refused = ann.post_from(origin, &below(path), &fields).await?;
            assert_eq!(refused.status, StatusCode::FORBIDDEN, "{path} {origin}");
            assert!(refused.body.contains("comes from another page"), "{path}: {}", refused.body);
        }
        // A browser without the page's cookie.
        let bare = Browser::new(&application, ANN).post(&below(path), &fields).await?;
        assert_eq!(bare.status, StatusCode::FORBIDDEN, "{path}");
    }
    let large = "x".repeat(160 << 10);
    let refused = ann.post(&below("/pause"), &[("form_token", &token), ("reason", &large)]).await?;
    assert_eq!(refused.status, StatusCode::PAYLOAD_TOO_LARGE);
    for table in ["outbox_audit", "outbox_operation"] {
        assert_eq!(service.db.integer(&format!("SELECT count(*) FROM {table}")).await?, 0, "{table}");
    }
    service.end().await
}

/// Goal: headers of a client determine neither the location of the page nor the user. Oracle: the
/// answers are those of a request without these headers.
async fn no_header_moves_the_page_or_gives_a_right<DB: Dialect>(stage: Stage) -> Outcome
where
    for<'a> Address: From<&'a Pool<DB>>,
{
    let service = Service::<DB>::start(&stage, options(PREFIX)).await?.with_dead().await?;
    // Another service of the application knows an operator by the type that the page uses.
    let with_extension =
        application(&service.page).layer(axum::Extension(Operator::new("mallory", OperatorRole::Operator)));
    for (name, value) in [
        ("x-forwarded-prefix", "//evil.example"),
        ("x-forwarded-host", "evil.example"),
        ("x-original-uri", "/evil"),
        ("x-script-name", "/\"><script>"),
        ("forwarded", "host=evil.example"),
        ("authorization", "Bearer token-of-ann-the-operator"),
        ("cookie", "relay-9465=x; __Host-relay=y; relay-form=../../../etc; relay-form"),
    ] {
        let eve = Browser::new(&with_extension, EVE).with(name, value);
        let shown = eve.get(&below("/dead")).await?;
        assert_eq!(shown.status, StatusCode::OK, "{name}");
        assert!(!shown.body.contains("evil") && !shown.body.contains("mallory"), "{name}: {}", shown.body);
        assert!(shown.body.contains(EVE) && shown.forms() == [0, 0], "{name}: {}", shown.body);
        let nobody = Browser::new(&with_extension, "").with(name, value).get(&below("/dead")).await?;
        assert_eq!(nobody.status, StatusCode::FORBIDDEN, "{name}");
        assert!(!nobody.body.contains(TOPIC), "{name}: {}", nobody.body);
    }
    let ann = Browser::new(&with_extension, ANN);
    for (path, status) in [
        ("/dead?token=secret", StatusCode::BAD_REQUEST),
        ("/dead?topic=%22%3E%3Cscript%3Ealert(1)%3C/script%3E", StatusCode::OK),
        ("//evil.example/dead", StatusCode::NOT_FOUND),
        ("/../dead", StatusCode::NOT_FOUND),
        ("/%2e%2e/dead", StatusCode::NOT_FOUND),
        (&format!("/dead?topic={}", "a".repeat(9_000)), StatusCode::URI_TOO_LONG),
    ] {
        let answer = ann.get(&below(path)).await?;
        assert_eq!(answer.status, status, "{path}");
        assert!(!answer.body.contains("<script>alert"), "{path}: {}", answer.body);
    }
    // A name that the audit could not keep.
    let long = format!("admin:{}", "a".repeat(256));
    for (user, told) in [("admin: ", "an empty name"), (&*long, "a name of 256 bytes")] {
        let refused = Browser::new(&with_extension, user).get(PREFIX).await?;
        assert_eq!(refused.status, StatusCode::FORBIDDEN, "{user}");
        assert!(refused.body.contains(told), "{user}: {}", refused.body);
    }
    service.end().await
}

/// Goal: an application can stop, in any order. Oracle: the stream of events ends, the page still
/// answers, and nothing of it remains once it is dropped.
async fn the_page_ends_with_its_relay_and_lives_without_it<DB: Dialect>(stage: Stage) -> Outcome
where
    for<'a> Address: From<&'a Pool<DB>>,
{
    let mut service = Service::<DB>::start(&stage, options(PREFIX)).await?.with_dead().await?;
    let ann = Browser::new(&application(&service.page), ANN);
    let mut events = ann.open(&below("/events")).await?.into_body();
    let first = tokio::time::timeout(Duration::from_secs(60), events.frame()).await?;
    assert!(first.is_some_and(|frame| frame.is_ok()), "the page is followed");
    service.stop().await?;
    let ended = async { while events.frame().await.is_some() {} };
    tokio::time::timeout(Duration::from_secs(60), ended).await?;
    let refused = ann.get(&below("/events")).await?;
    assert_eq!(refused.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(refused.body.contains("its relay has stopped"), "{}", refused.body);
    // No relay publishes, but operators can still decide.
    let token = ann.get(&below("/dead")).await?.field("form_token")?.to_owned();
    let decided = requeue(&ann, &token).await?.1.ok_or("not asked for a reason")?;
    assert_eq!(decided.status, StatusCode::SEE_OTHER, "{}", decided.body);
    assert_eq!(service.db.integer("SELECT count(*) FROM outbox_audit").await?, 1);

    // A page of a relay that never runs, followed and stopped by its application.
    let relay = Relay::builder(&service.pool)
        .name("shipping")
        .connector(service.broker.connector(MaxInFlightPerKey::Pipelined), SizeLimit::PORTABLE)
        .build()?;
    let page = relay.page(options(PREFIX))?;
    drop(relay);
    let alone = Browser::new(&application(&page), ANN);
    let mut events = alone.open(&below("/events")).await?.into_body();
    page.stop();
    let ended = async { while events.frame().await.is_some() {} };
    tokio::time::timeout(Duration::from_secs(60), ended).await?;
    assert_eq!(alone.get(PREFIX).await?.status, StatusCode::OK);

    // A page that is dropped while it is followed leaves no task behind.
    let asked = Arc::new(());
    let seen = Arc::downgrade(&asked);
    let relay = Relay::builder(&service.pool)
        .name("shipping")
        .connector(service.broker.connector(MaxInFlightPerKey::Pipelined), SizeLimit::PORTABLE)
        .build()?;
    let page = relay.page(PageOptions::new(PREFIX, move |_| {
        let _kept = &asked;
        Some(Operator::new("ann", OperatorRole::Viewer))
    }))?;
    let twice = Relay::page_of([&relay, &relay], options(PREFIX)).err().map(|error| error.to_string());
    let twice = twice.unwrap_or_default();
    assert!(twice.contains("two relays of the page are called shipping"), "{twice}");
    let brief = Browser::new(&application(&page), "");
    assert_eq!(brief.get(PREFIX).await?.status, StatusCode::OK);
    drop((page, brief, relay));
    eventually("the queries end", || async { Ok((seen.strong_count() == 0).then_some(())) }).await?;
    service.end().await
}

/// Sends the form of an edit.
async fn send_edit(browser: &Browser, fields: Vec<(&'static str, String)>) -> Result<Answer, Failure> {
    let fields: Vec<(&str, &str)> = fields.iter().map(|(name, value)| (*name, value.as_str())).collect();
    browser.post(&below("/message/edit/decide"), &fields).await
}

/// Goal: an operator corrects a dead message in a browser without scripts, and changes only what
/// was shown. Oracle: the form, what the broker has, the audit with the content before and after,
/// and the answers to a form that is sent twice, to one that was opened before, and to a viewer.
async fn a_dead_message_is_corrected_and_requeued<DB: Dialect>(stage: Stage) -> Outcome
where
    for<'a> Address: From<&'a Pool<DB>>,
{
    let service = Service::<DB>::start(&stage, options(PREFIX)).await?.with_dead().await?;
    let application = application(&service.page);
    let ann = Browser::new(&application, ANN);
    let id = service.db.integer("SELECT max(id) FROM outbox_message").await?.to_string();
    let story = below(&format!("/message?id={id}&pipeline=shipping"));
    let shown = ann.get(&story).await?;
    assert!(shown.body.contains("Edit…") && shown.body.contains("Attempt 1, failed"), "{}", shown.body);
    let token = shown.field("form_token")?.to_owned();
    let ask = [("id", &*id), ("pipeline", "shipping"), ("reason", "look"), ("form_token", &*token)];
    let form = ann.post(&below("/message/edit"), &ask).await?;
    assert_eq!(form.status, StatusCode::OK, "{}", form.body);
    assert!(form.body.contains("\n1</textarea>") && form.body.contains("keeps its id"), "{}", form.body);
    // Opened before the other one is sent.
    let stale = ann.post(&below("/message/edit"), &ask).await?;
    let views = "SELECT count(*) FROM outbox_operation WHERE action = 'payload' AND note = 'look'";
    assert_eq!(service.db.integer(views).await?, 2);

    let fields = |form: &Answer| -> Result<Vec<(&'static str, String)>, Failure> {
        let hidden = [
            "form_token",
            "decision",
            "pipeline",
            "place",
            "message",
            "as_of",
            "digest",
            "payload_before",
            "headers_before",
        ];
        hidden.into_iter().map(|name| Ok((name, form.field(name)?.to_owned()))).collect()
    };
    let with =
        |fields: &[(&'static str, String)], typed: &[(&'static str, &str)]| -> Vec<(&'static str, String)> {
            let typed = typed.iter().map(|(name, value)| (*name, (*value).to_owned()));
            fields.iter().cloned().chain(typed).collect()
        };
    let hidden = fields(&form)?;
    let of_stale = fields(&stale)?;
    let unchanged =
        send_edit(&ann, with(&hidden, &[("payload", "1"), ("headers", ""), ("reason", "no")])).await?;
    assert_eq!(unchanged.status, StatusCode::UNPROCESSABLE_ENTITY, "{}", unchanged.body);
    assert!(unchanged.body.contains("neither payload nor headers were changed"), "{}", unchanged.body);
    // The page shows the text again, with a box to accept it and without a reason.
    let broken = [("payload", "{\"kg\": 2"), ("headers", ""), ("reason", "the scale")];
    let warned = send_edit(&ann, with(&hidden, &broken)).await?;
    assert_eq!(warned.status, StatusCode::UNPROCESSABLE_ENTITY, "{}", warned.body);
    for part in ["the new payload is not JSON", "accept_invalid_json", "{&quot;kg&quot;: 2</textarea>"] {
        assert!(warned.body.contains(part), "{part}: {}", warned.body);
    }
    let blank = [("payload", "{\"kg\": 2}"), ("headers", ""), ("reason", " ")];
    let blank = send_edit(&ann, with(&hidden, &blank)).await?;
    assert_eq!(blank.status, StatusCode::UNPROCESSABLE_ENTITY, "{}", blank.body);
    assert!(blank.body.contains("the reason is empty"), "{}", blank.body);
    assert!(blank.body.contains("{&quot;kg&quot;: 2}</textarea>"), "{}", blank.body);
    assert_eq!(service.db.integer("SELECT count(*) FROM outbox_audit").await?, 0);
    let typed = [
        ("payload", "{\r\n\"kg\": 2}"),
        ("headers", "tenant=acme"),
        ("reason", "the scale"),
        ("then", "requeue"),
    ];
    for _ in 0..2 {
        let done = send_edit(&ann, with(&hidden, &typed)).await?;
        assert_eq!(done.status, StatusCode::SEE_OTHER, "{}", done.body);
        assert_eq!(done.value("location"), story);
        service.broker.stored(&Topic::new(TOPIC)?, 1).await;
    }
    let left = service.broker.log(&Topic::new(TOPIC)?);
    let content: Vec<_> =
        left.iter().map(|message| (&message.payload[..], message.headers.get("tenant"))).collect();
    assert_eq!(content, [(&b"{\n\"kg\": 2}"[..], Some("acme"))], "the line breaks are those of the text");
    let actions = service.db.texts("SELECT action || ' ' || note FROM outbox_audit ORDER BY seq").await?;
    assert_eq!(actions, ["edit the scale", "requeue the scale"]);
    let again = [("payload", "4"), ("headers", "tenant=acme"), ("reason", "the scale")];
    let again = send_edit(&ann, with(&hidden, &again)).await?;
    assert_eq!(again.status, StatusCode::CONFLICT, "{}", again.body);
    assert!(again.body.contains("sent before, with another content"), "{}", again.body);
    let late =
        send_edit(&ann, with(&of_stale, &[("payload", "3"), ("headers", ""), ("reason", "late")])).await?;
    assert_eq!(late.status, StatusCode::CONFLICT, "{}", late.body);
    assert!(late.body.contains("nothing was changed"), "{}", late.body);

    let shown = ann.get(&story).await?;
    assert!(shown.body.contains("What the edit by"), "{}", shown.body);
    let number = shown.field("number")?.to_owned();
    let ask = [
        ("id", &*id),
        ("pipeline", "shipping"),
        ("number", &*number),
        ("reason", "check"),
        ("form_token", &*token),
    ];
    let kept = ann.post(&below("/message/edit/content"), &ask).await?;
    let order = ["Before", "None.", ">1</pre>", "After", "tenant=acme", "{\n&quot;kg&quot;: 2}</pre>"];
    let places: Vec<Option<usize>> = order.iter().map(|told| kept.body.find(told)).collect();
    assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{places:?} {}", kept.body);
    let eve = Browser::new(&application, EVE);
    assert!(!eve.get(&story).await?.body.contains("<form method=\"post\""), "a viewer decides nothing");
    service.end().await
}

/// The event that the consumer of the service handles.
#[derive(Deserialize)]
struct Packed {
    parcel: i64,
}

impl Event for Packed {
    const TOPIC: &'static str = TOPIC;
    const KIND: &'static str = "packed";
}

/// Goal: an operator sees on the page what a consumer of the service reads and waits for, and which
/// message it is; once it has ended, the first sentence of the page says so. Oracle: the pages
/// while the broker is away, without a message, in a handler, and after the end.
async fn a_consumer_of_the_service_says_what_it_waits_for<DB: Dialect>(stage: Stage) -> Outcome
where
    for<'a> Address: From<&'a Pool<DB>>,
{
    let db = Database::<DB>::migrated(&stage).await?;
    let pool = outbox::pool::<DB>(&db.relay_url()?).await?;
    let consuming = outbox::pool::<DB>(&DB::url_of(Role::Consumer, &db.url)?).await?;
    let broker = Broker::new();
    broker.faults().unreachable();
    let gate = Arc::new(Semaphore::new(0));
    let handler = Arc::clone(&gate);
    let inbox = Inbox::open(consuming.clone(), InboxOptions::default()).await?;
    let consumer = Consumer::builder(inbox, "billing")
        .on(async move |_: &mut Tx<DB>, packed: Packed| {
            let permit = handler.acquire().await;
            permit.map_err(|_| HandlerError::reject(format!("parcel {}", packed.parcel)))?.forget();
            Ok::<_, HandlerError>(())
        })
        .subscribe(broker.subscriber("billing", [Topic::new(TOPIC)?]))
        .build()?;
    let relay = Relay::builder(&pool)
        .name("shipping")
        .connector(broker.connector(MaxInFlightPerKey::Pipelined), SizeLimit::PORTABLE)
        .build()?;
    let page = relay.page(options(PREFIX).consumer(consumer.status()))?;
    let eve = Browser::new(&application(&page), EVE);
    let until = async |path: &str, parts: &[&str]| {
        eventually(parts[0], || async {
            let shown = eve.get(&below(path)).await?.body;
            Ok(parts.iter().all(|part| shown.contains(part)).then_some(()))
        })
        .await
    };
    until("/consumers", &["not started", "In this process"]).await?;

    let (stop, stopped) = oneshot::channel::<()>();
    let running = tokio::spawn(consumer.run(async { drop(stopped.await) }));
    until("/consumers", &["no session", "the broker</span> · "]).await?;
    broker.faults().reachable();
    until("/consumers", &[">reads<", "the next message: there is none", "memory group billing"]).await?;
    until("", &["Fine", "billing", "reads "]).await?;

    let kind = EventType::new(Packed::KIND)?;
    let message = Message::new(Topic::new(TOPIC)?, kind, String::from("{\"parcel\": 7}"));
    let story = format!("{PREFIX}/message?id={}", message.id);
    broker.put(&Topic::new(TOPIC)?, Ok(message));
    until("/consumers", &["the end of a handler</span> · ", &story]).await?;
    gate.add_permits(1);
    until("/consumers", &["the next message: there is none"]).await?;

    drop(stop);
    running.await??;
    until("/consumers", &[">ended<", "It ended "]).await?;
    until("", &["a consumer of this process applies nothing", "a-consumer-applies-nothing"]).await?;
    page.stop();
    pool.close().await;
    consuming.close().await;
    Ok(())
}
