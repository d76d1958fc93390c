//! The operators' page of the real program: the rights of each user, and the operations that are
//! forbidden to all.

mod access;
mod browser;
mod bulk;
mod client;
mod consumer;
mod decisions;
mod doctor;
mod driver;
mod exported;
mod front;
mod lists;
mod memory;
mod messages;
mod proxied;
mod replayed;
mod rights;
mod scene;
mod sessions;
mod shards;
mod shown;
mod surface;
mod verify;

use sqlx::Postgres;
use tests::relay_process::Config;
use tests::workload::Workload;
use tests::{Backend, Dialect, Failure, RelayProcess, Role, Stage, brokers, eventually};

use client::Client;

/// Name of the relay and its pipeline.
const RELAY: &str = "orders";
/// Log line that names the page's address.
const SERVING: &str = "serving the page";
/// Token of an operator.
const ANN: &str = "token-of-ann-the-operator";
/// Password of a viewer.
const EVE: &str = "password-of-eve";

const USERS: &str = "\
[[page.user]]\nname = \"ann\"\nrole = \"operator\"\ntoken = \"token-of-ann-the-operator\"\n\
[[page.user]]\nname = \"eve\"\nrole = \"viewer\"\npassword = \"password-of-eve\"\n";

tests::cases! { "{case}":
    anywhere { a_page_that_others_reach_is_refused_without_users_and_tls = surface::refused_starts }
    anywhere + postgres {
        the_page_answers_nobody_unknown = surface::nobody_unknown,
        a_login_on_the_page_lasts_and_ends = surface::login,
        the_page_speaks_tls = surface::tls,
        a_session_of_the_page_ends_in_every_process = sessions::revoked,
        an_ended_session_stays_ended_and_a_new_secret_ends_all = sessions::kept,
        without_users_people_of_this_machine_only_look = surface::open,
        a_viewer_of_the_page_decides_nothing = rights::viewer,
        an_operator_of_the_page_decides_and_the_audit_knows = rights::operator,
        a_foreign_page_decides_nothing = rights::forged,
        a_proxy_names_the_people_of_the_page = proxied::named,
        headers_of_the_proxy_from_elsewhere_open_nothing = proxied::forged,
        a_proxy_with_a_secret_is_believed_only_with_it = proxied::secret,
        two_operators_of_the_page_decide_once = rights::two_operators,
        a_decision_reaches_the_shard_that_it_was_made_for = shards::one_consumer,
        hostile_names_are_text_on_the_page = shown::hostile,
        messages_are_searched_on_the_page = messages::searched,
        hostile_messages_are_text_in_lists_and_stories = messages::hostile,
        payloads_are_hidden_until_they_are_asked_for = shown::payloads,
        several_relays_give_one_picture = shown::one_picture,
        the_audit_on_the_page_is_filtered_and_exported = exported::audit,
        the_doctor_runs_from_the_page = doctor::run,
        a_comparison_runs_from_the_page_and_can_be_stopped = verify::run,
        a_replay_from_the_page_sends_what_was_shown = replayed::run,
        held_messages_of_a_consumer_are_left_alone = consumer::held,
        long_lists_of_the_page_come_in_pieces = lists::pieces,
        a_page_over_rows_larger_than_memory_keeps_its_own = memory::bounded,
        event_streams_of_the_page_are_bounded = lists::streams,
    }
    modules { browser, bulk }
}

/// A running relay with its page. Its dead messages are larger than the pipeline accepts.
pub(crate) struct Served {
    pub(crate) workload: Workload<Postgres>,
    pub(crate) relay: RelayProcess,
    pub(crate) config: Config,
    pub(crate) address: String,
}

impl Served {
    /// Starts a relay with `users`; `more` is appended to the section of the page.
    pub(crate) async fn start(stage: &Stage, users: &str, more: &str) -> Result<Self, Failure> {
        let workload =
            Workload::<Postgres>::open(stage, brokers::open(stage, Backend::KafkaMock).await?).await?;
        let config = config(stage, &workload, users, more)?;
        let relay = RelayProcess::start(stage, &config)?;
        let address = relay.address(SERVING).await?;
        relay.tells("connected").await?;
        Ok(Self { workload, relay, config, address })
    }

    /// Places this many messages that become dead at once, each with its own key.
    pub(crate) async fn with_dead(self, count: usize) -> Result<Self, Failure> {
        self.with_dead_more(0, count).await
    }

    /// Stores dead messages numbered from `from` up to `to`, exclusive.
    pub(crate) async fn with_dead_more(self, from: usize, to: usize) -> Result<Self, Failure> {
        let there = self.parked("dead").await?;
        for number in from..to {
            let mut tx = self.workload.begin().await?;
            self.workload.place_large_in(&mut tx, &format!("key-{number}"), 3_000).await?;
            tx.commit().await?;
        }
        eventually("the messages are dead", || async {
            Ok((self.parked("dead").await? == there + (to - from) as i64).then_some(()))
        })
        .await?;
        Ok(self)
    }

    /// Returns how many messages are parked in a state.
    pub(crate) async fn parked(&self, state: &str) -> Result<i64, Failure> {
        let count = format!("SELECT count(*) FROM outbox_exception WHERE state = '{state}'");
        self.workload.database.integer(&count).await
    }

    /// Returns the number of lines in all audits: decisions, and other operations of operators,
    /// without logins.
    pub(crate) async fn audited(&self) -> Result<i64, Failure> {
        let count = "SELECT (SELECT count(*) FROM outbox_audit) \
                     + (SELECT count(*) FROM outbox_operation WHERE action NOT IN ('login', 'logout')) \
                     + (SELECT count(*) FROM inbox_audit) + (SELECT count(*) FROM idempotency_audit) \
                     + (SELECT count(*) FROM saga_audit)";
        self.workload.database.integer(count).await
    }

    /// Returns the values that the HTML form of the list submits for the dead messages.
    pub(crate) async fn rows(&self) -> Result<Vec<String>, Failure> {
        let rows =
            "SELECT 'outbox/' || id || '/orders' FROM outbox_exception WHERE state = 'dead' ORDER BY id";
        self.workload.database.texts(rows).await
    }

    /// Returns a client that logs in as Ann, with her token.
    pub(crate) fn ann(&self) -> Client {
        Client::new(&self.address).with("Authorization", &format!("Bearer {ANN}"))
    }

    /// Returns a client that logs in as Eve, with her password.
    pub(crate) fn eve(&self) -> Client {
        Client::new(&self.address).basic("eve", EVE)
    }
}

/// Returns a configuration with the page at an address that the relay chooses and logs.
pub(crate) fn config(
    stage: &Stage,
    workload: &Workload<Postgres>,
    users: &str,
    more: &str,
) -> Result<Config, Failure> {
    let consumer = <Postgres as Dialect>::url_of(Role::Consumer, &workload.database.url)?;
    let inbox = format!("[[verify.inbox]]\nconsumer = \"workload\"\nurl = {consumer:?}\n");
    let page =
        format!("message_bytes_max = \"2000\"\n[page]\nlisten = \"127.0.0.1:0\"\n{more}{users}{inbox}");
    let url = workload.database.relay_url()?;
    Config::write(stage, RELAY, &url, workload.broker.as_ref(), &page)
}
