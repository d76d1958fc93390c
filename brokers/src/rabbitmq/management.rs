//! RabbitMQ's management API, which reports the settings of queues; AMQP does not. Blocking, and
//! only for `relay doctor`.

use std::time::{Duration, Instant, SystemTime};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use url::Url;

use super::alarms::{Node, alarms};
use super::config::Config;
use super::endpoint::{Endpoint, ManagementLogin};
use super::facts::{QueueFacts, QueueSettings, TopicFacts};
use super::management_url::check;
use crate::inspect::{BrokerFacts, ClockReading, InspectError, Inspected};
use crate::proxy;
use crate::settings::InvalidSetting;
use crate::tls::Tls;

/// Resolution of the header `Date`.
const DATE_RESOLUTION: Duration = Duration::from_secs(1);

/// A client of the management API.
pub(super) struct Management {
    base: Url,
    agent: ureq::Agent,
    /// Value of the header `Authorization`.
    authorization: String,
    vhost: String,
}

#[derive(Deserialize)]
struct Overview {
    rabbitmq_version: Option<String>,
}

#[derive(Deserialize)]
struct Exchange {
    #[serde(rename = "type")]
    kind: String,
    durable: bool,
    #[serde(default)]
    arguments: Map<String, Value>,
    /// The name of a policy that applies to it.
    policy: Option<String>,
}

impl Exchange {
    /// Returns whether messages that no binding takes may go to another exchange.
    fn may_have_alternate(&self) -> bool {
        self.policy.is_some() || self.arguments.contains_key("alternate-exchange")
    }
}

#[derive(Deserialize)]
struct Binding {
    destination: String,
    destination_type: String,
    routing_key: String,
}

#[derive(Deserialize)]
struct Queue {
    name: String,
    #[serde(rename = "type")]
    kind: Option<String>,
    durable: bool,
    #[serde(default)]
    auto_delete: bool,
    #[serde(default)]
    exclusive: bool,
    #[serde(default)]
    arguments: Map<String, Value>,
    /// An empty list if there is none.
    #[serde(default)]
    effective_policy_definition: Value,
    members: Option<Vec<String>>,
    messages_ready: Option<u64>,
    message_bytes_ready: Option<u64>,
}

impl Management {
    /// Creates a client of the configured API, if there is one. Reads passwords and certificates.
    pub(super) async fn new(config: &Config) -> Result<Option<Self>, InspectError> {
        let Some(text) = &config.management_url else { return Ok(None) };
        let wrong = |error: InvalidSetting| InspectError::operator(error.to_string());
        let base = check(text, config.oauth.as_ref(), config.allow_plaintext).map_err(wrong)?;
        let login = Endpoint::new(config).map_err(wrong)?.management_login().await?;
        let ManagementLogin { authorization, vhost } = login;
        let timeout = Duration::from_millis(config.connect_timeout_ms);
        let https = config.tls.as_ref().unwrap_or(&Tls::default()).https("rabbitmq.tls").map_err(wrong)?;
        let tls = https.ureq().map_err(wrong)?;
        let agent = ureq::Agent::config_builder()
            .timeout_global(Some(timeout))
            .http_status_as_error(false)
            .max_redirects(0)
            .tls_config(tls)
            .proxy(proxy::for_requests_to(&base))
            .build()
            .into();
        Ok(Some(Self { base, agent, authorization, vhost }))
    }

    /// Asks about the queues of these topics on an exchange; the empty name is the default
    /// exchange.
    pub(super) fn inspect(
        &self,
        exchange: &str,
        topics: &[String],
    ) -> Result<BrokerFacts<TopicFacts>, InspectError> {
        let (overview, clock) = self.get::<Overview>(&["overview"])?;
        let overview =
            overview.ok_or_else(|| InspectError::operator("the management API has no overview"))?;
        let look = |topic: &String| Inspected { topic: topic.clone(), facts: self.topic(exchange, topic) };
        Ok(BrokerFacts {
            version: overview.rabbitmq_version.map(|version| format!("RabbitMQ {version}")),
            nodes: None,
            clock,
            // Hosted servers hide the nodes from every user: the other checks still run.
            alarms: self
                .get::<Vec<Node>>(&["nodes"])
                .ok()
                .and_then(|(nodes, _)| nodes)
                .map(|nodes| alarms(&nodes)),
            topics: topics.iter().map(look).collect(),
        })
    }

    fn topic(&self, exchange: &str, topic: &str) -> Result<TopicFacts, InspectError> {
        if exchange.is_empty() {
            return Ok(TopicFacts { queues: Some(vec![self.queue(topic, topic)?]), ..TopicFacts::default() });
        }
        let (found, _) = self.get::<Exchange>(&["exchanges", &self.vhost, exchange])?;
        let missing = || InspectError::operator(format!("there is no exchange {exchange:?}; declare it"));
        let found = found.ok_or_else(missing)?;
        let bindings = self.bindings(exchange)?;
        let matching = bindings.iter().filter(|binding| matches(&found.kind, &binding.routing_key, topic));
        let matching: Vec<&Binding> = matching.collect();
        // Behind another exchange, or with another kind of routing, the queues are unknown.
        let is_known = matches!(found.kind.as_str(), "topic" | "direct" | "fanout")
            && matching.iter().all(|binding| binding.destination_type == "queue");
        let queues = if is_known {
            Some(matching.iter().map(|b| self.queue(&b.destination, topic)).collect::<Result<_, _>>()?)
        } else {
            None
        };
        Ok(TopicFacts { queues, exchange_durable: Some(found.durable), ..TopicFacts::default() })
    }

    fn bindings(&self, exchange: &str) -> Result<Vec<Binding>, InspectError> {
        let path = ["exchanges", &self.vhost, exchange, "bindings", "source"];
        Ok(self.get::<Vec<Binding>>(&path)?.0.unwrap_or_default())
    }

    /// Asks about a queue that takes the messages of a topic.
    fn queue(&self, name: &str, topic: &str) -> Result<QueueFacts, InspectError> {
        let (queue, _) = self.get::<Queue>(&["queues", &self.vhost, name])?;
        let missing = || InspectError::operator(format!("there is no queue {name:?}; declare it"));
        let queue = queue.ok_or_else(missing)?;
        // A dead letter without its own key keeps the key of the message.
        let key = queue.text("dead-letter-routing-key").unwrap_or_else(|| topic.to_owned());
        let mut facts = QueueFacts::from(queue);
        if let Some(settings) = &mut facts.settings
            && let Some(exchange) = &settings.dead_letter_exchange
        {
            settings.dead_letters_lost = self.dead_letters_lost(exchange, &key)?;
        }
        Ok(facts)
    }

    /// Returns why dead letters with a routing key reach no queue from an exchange.
    fn dead_letters_lost(&self, exchange: &str, key: &str) -> Result<Option<String>, InspectError> {
        if exchange.is_empty() {
            let (queue, _) = self.get::<Queue>(&["queues", &self.vhost, key])?;
            return Ok(queue.is_none().then(|| format!("there is no queue {key:?}")));
        }
        match self.get::<Exchange>(&["exchanges", &self.vhost, exchange])?.0 {
            None => Ok(Some(format!("there is no exchange {exchange:?}"))),
            Some(found) => Ok(unbound(&found, &self.bindings(exchange)?, key)
                .then(|| format!("no binding of the exchange {exchange:?} matches the routing key {key:?}"))),
        }
    }

    /// Sends one request. Returns the object, `None` if it does not exist, and the broker's time.
    fn get<T: DeserializeOwned>(
        &self,
        path: &[&str],
    ) -> Result<(Option<T>, Option<ClockReading>), InspectError> {
        let mut url = self.base.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().push("api").extend(path);
        }
        let (before, asked) = (SystemTime::now(), Instant::now());
        let answer = self.agent.get(url.as_str()).header("Authorization", &self.authorization).call();
        let mut answer = answer.map_err(|error| {
            let place = self.base.host_str().unwrap_or_default();
            InspectError::broker(format!("the management API at {place} does not answer: {error}"))
        })?;
        let date =
            answer.headers().get("date").and_then(|date| httpdate::parse_http_date(date.to_str().ok()?).ok());
        let clock = date.map(|date| reading(date, before, asked.elapsed()));
        match answer.status().as_u16() {
            200 => {}
            404 => return Ok((None, clock)),
            401 | 403 => {
                return Err(InspectError::operator(
                    "the management API refuses this user; give it the tag `monitoring` \
                     (rabbitmqctl set_user_tags USER monitoring)",
                ));
            }
            status => {
                return Err(InspectError::broker(format!("the management API answers with status {status}")));
            }
        }
        let body = answer.body_mut().read_json();
        let body = body.map_err(|error| {
            InspectError::operator(format!("the management API sent an unexpected answer: {error}"))
        })?;
        Ok((Some(body), clock))
    }
}

/// Returns the broker's clock in the middle of a request.
fn reading(date: SystemTime, before: SystemTime, took: Duration) -> ClockReading {
    let middle = before + took / 2;
    // The header truncates fractions.
    let date = date + DATE_RESOLUTION / 2;
    let skew = date.duration_since(middle).unwrap_or_else(|error| error.duration());
    ClockReading { skew, uncertainty: took / 2 + DATE_RESOLUTION / 2 }
}

/// Returns whether an exchange drops messages with a routing key.
fn unbound(exchange: &Exchange, bindings: &[Binding], key: &str) -> bool {
    let takes = |binding: &Binding| matches(&exchange.kind, &binding.routing_key, key);
    !exchange.may_have_alternate() && !bindings.iter().any(takes)
}

/// Returns whether an exchange of a kind routes a routing key to a binding.
fn matches(kind: &str, binding: &str, key: &str) -> bool {
    match kind {
        "fanout" => true,
        "direct" => binding == key,
        "topic" => {
            let (pattern, words): (Vec<_>, Vec<_>) = (binding.split('.').collect(), key.split('.').collect());
            words_match(&pattern, &words)
        }
        _ => true,
    }
}

/// Matches words: `*` stands for one word, `#` for any number of them. Quadratic in the number of
/// words, but a key has at most 255 bytes.
fn words_match(pattern: &[&str], words: &[&str]) -> bool {
    // The lengths of `words` that the pattern matches so far.
    let mut reached = vec![false; words.len() + 1];
    reached[0] = true;
    for part in pattern {
        let mut next = vec![false; words.len() + 1];
        for at in 0..=words.len() {
            let stays = *part == "#" && (reached[at] || (at > 0 && next[at - 1]));
            let takes = at > 0 && reached[at - 1] && (*part == "*" || *part == words[at - 1]);
            next[at] = stays || (*part != "#" && takes);
        }
        reached = next;
    }
    reached[words.len()]
}

/// Returns the number that RabbitMQ applies of an argument and a policy: the lower one. A negative
/// number means no limit (<https://www.rabbitmq.com/docs/policies>).
fn applied(argument: i64, policy: i64) -> i64 {
    if argument < 0 || policy < 0 { argument.max(policy) } else { argument.min(policy) }
}

impl Queue {
    /// Returns a setting of the declaration.
    fn argument(&self, name: &str) -> Option<&Value> {
        self.arguments.get(&format!("x-{name}"))
    }

    /// Returns a setting of the policy that applies.
    fn of_policy(&self, name: &str) -> Option<&Value> {
        self.effective_policy_definition.as_object()?.get(name)
    }

    /// Returns a setting of the declaration, or else of the policy.
    fn value(&self, name: &str) -> Option<&Value> {
        self.argument(name).or_else(|| self.of_policy(name))
    }

    /// Returns a text of the declaration, or else of the policy.
    fn text(&self, name: &str) -> Option<String> {
        self.value(name).and_then(Value::as_str).map(str::to_owned)
    }

    /// Returns the number that RabbitMQ applies.
    fn number(&self, name: &str) -> Option<i64> {
        match [self.argument(name), self.of_policy(name)].map(|value| value.and_then(Value::as_i64)) {
            [Some(argument), Some(of_policy)] => Some(applied(argument, of_policy)),
            [argument, of_policy] => argument.or(of_policy),
        }
    }

    /// Returns how full it is, if it has reached a bound. Only messages that no consumer has count.
    fn full(&self) -> Option<String> {
        let of = |bound: &str, ready: Option<u64>, unit: &str| {
            let (max, ready) = (u64::try_from(self.number(bound)?).ok()?, ready?);
            (ready >= max).then(|| format!("{ready} of {max} {unit}"))
        };
        of("max-length", self.messages_ready, "messages")
            .or_else(|| of("max-length-bytes", self.message_bytes_ready, "bytes"))
    }

    fn millis(&self, name: &str) -> Option<Duration> {
        self.number(name)?.try_into().ok().map(Duration::from_millis)
    }
}

impl From<Queue> for QueueFacts {
    fn from(queue: Queue) -> Self {
        let kind = queue
            .kind
            .clone()
            .or_else(|| queue.text("queue-type"))
            .unwrap_or_else(|| String::from("classic"));
        // The policy overrides the argument for this setting alone, and only in quorum queues.
        let overflow = match kind.as_str() {
            "quorum" => queue.of_policy("overflow").or_else(|| queue.argument("overflow")),
            _ => queue.value("overflow"),
        };
        let settings = QueueSettings {
            kind,
            durable: queue.durable,
            transient: queue.auto_delete || queue.exclusive,
            bounded: queue.value("max-length").is_some() || queue.value("max-length-bytes").is_some(),
            full: queue.full(),
            overflow: overflow.and_then(Value::as_str).map(str::to_owned),
            delivery_limit: queue.number("delivery-limit"),
            dead_letter_exchange: queue.text("dead-letter-exchange"),
            dead_letters_lost: None,
            message_ttl: queue.millis("message-ttl"),
            expires: queue.millis("expires"),
            members: queue.members.as_ref().map(Vec::len),
        };
        Self { queue: queue.name, settings: Some(settings) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oauth::OAuth;

    #[test]
    fn routing_keys_match_as_rabbitmq_matches_them() {
        for (binding, key, is_match) in [
            ("orders.*", "orders.placed", true),
            ("orders.*", "orders", false),
            ("orders.#", "orders", true),
            ("#", "a.b.c", true),
            ("#.c", "a.b.c", true),
            ("*.b.#", "a.b", true),
            ("a.*.c", "a.b.d", false),
        ] {
            assert_eq!(matches("topic", binding, key), is_match, "{binding} {key}");
        }
        assert!(matches("fanout", "", "x") && !matches("direct", "a", "b"));
    }

    #[test]
    fn an_exchange_that_no_binding_takes_a_dead_letter_from_drops_it() {
        let binding = |key: &str| {
            let routing_key = key.to_owned();
            Binding { destination: String::from("d"), destination_type: String::from("queue"), routing_key }
        };
        let direct = serde_json::json!({"type": "direct", "durable": true, "arguments": {}});
        let topic = serde_json::json!({"type": "topic", "durable": true});
        let headers = serde_json::json!({"type": "headers", "durable": true});
        let alternate =
            serde_json::json!({"type": "topic", "durable": true, "arguments": {"alternate-exchange": "a"}});
        let by_policy = serde_json::json!({"type": "topic", "durable": true, "policy": "alternate"});
        for (exchange, keys, is_lost) in [
            (&direct, &["orders"][..], false),
            (&direct, &["other"], true),
            (&direct, &[], true),
            (&topic, &["other", "#"], false),
            (&topic, &["other.#"], true),
            (&headers, &[""], false),
            (&headers, &[], true),
            (&alternate, &[], false),
            (&by_policy, &[], false),
        ] {
            let exchange: Exchange = serde_json::from_value(exchange.clone()).unwrap();
            let bindings: Vec<Binding> = keys.iter().map(|key| binding(key)).collect();
            assert_eq!(unbound(&exchange, &bindings, "orders"), is_lost, "{} {keys:?}", exchange.kind);
        }
    }

    #[test]
    fn the_stricter_of_argument_and_policy_counts() {
        for (argument, policy, limit) in [(20, 5, 5), (5, 20, 5), (-1, 5, 5), (5, -1, 5), (-1, -1, -1)] {
            assert_eq!(applied(argument, policy), limit, "{argument} {policy}");
        }
    }

    #[test]
    fn a_policy_counts_where_the_declaration_says_nothing() {
        let queue: Queue = serde_json::from_str(
            r#"{"name": "orders", "durable": true, "type": "quorum", "members": ["a", "b"],
                "arguments": {"x-delivery-limit": 5},
                "effective_policy_definition": {"delivery-limit": 9, "overflow": "reject-publish", "max-length": 9}}"#,
        )
        .unwrap();
        let settings = QueueFacts::from(queue).settings.unwrap();
        assert_eq!((settings.delivery_limit, settings.members), (Some(5), Some(2)));
        assert_eq!(settings.overflow.as_deref(), Some("reject-publish"));
        assert!(settings.bounded && settings.durable && !settings.transient);
        assert_eq!(settings.full, None, "how many it has is unknown");
    }

    #[test]
    fn a_queue_is_full_at_the_bound_that_applies() {
        for (max, ready, full) in [(9, 8, None), (9, 9, Some("9 of 9 messages")), (12, 11, None)] {
            let queue = serde_json::json!({
                "name": "orders", "durable": true, "arguments": {"x-max-length": 12},
                "effective_policy_definition": {"max-length": max}, "messages_ready": ready,
            });
            let queue: Queue = serde_json::from_value(queue).unwrap();
            assert_eq!(queue.full().as_deref(), full, "{max} {ready}");
        }
        let queue = serde_json::json!({
            "name": "orders", "durable": true, "arguments": {"x-max-length-bytes": 100},
            "messages_ready": 3, "message_bytes_ready": 120,
        });
        let queue: Queue = serde_json::from_value(queue).unwrap();
        assert_eq!(queue.full().as_deref(), Some("120 of 100 bytes"));
    }

    #[test]
    fn a_policy_decides_about_the_overflow_of_a_quorum_queue_only() {
        for (kind, argument, policy, applied) in [
            ("quorum", "reject-publish", "drop-head", "drop-head"),
            ("quorum", "drop-head", "reject-publish", "reject-publish"),
            ("classic", "reject-publish", "drop-head", "reject-publish"),
            ("classic", "drop-head", "reject-publish", "drop-head"),
        ] {
            let queue = serde_json::json!({
                "name": "orders", "durable": true, "type": kind,
                "arguments": {"x-overflow": argument},
                "effective_policy_definition": {"overflow": policy},
            });
            let queue: Queue = serde_json::from_value(queue).unwrap();
            let settings = QueueFacts::from(queue).settings.unwrap();
            assert_eq!(settings.overflow.as_deref(), Some(applied), "{kind} {argument} {policy}");
        }
    }

    /// The test below runs it with a proxy that does not exist.
    #[tokio::test]
    async fn a_request_to_this_machine_is_answered() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = std::thread::spawn(move || {
            let (mut client, _) = listener.accept().unwrap();
            let (mut request, mut part) = (Vec::new(), [0; 4_096]);
            while !request.ends_with(b"\r\n\r\n") {
                let length = std::io::Read::read(&mut client, &mut part).unwrap();
                request.extend_from_slice(&part[..length]);
            }
            let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 29\r\n\r\n{\"rabbitmq_version\": \"4.1.0\"}";
            std::io::Write::write_all(&mut client, answer).unwrap();
        });
        let config = Config {
            url: secrecy::SecretString::from("amqp://127.0.0.1"),
            management_url: Some(format!("http://127.0.0.1:{port}")),
            ..Config::default()
        };
        let management = Management::new(&config).await.unwrap().unwrap();
        let (overview, _) = management.get::<Overview>(&["overview"]).unwrap();
        assert_eq!(overview.unwrap().rabbitmq_version.as_deref(), Some("4.1.0"));
        server.join().unwrap();
    }

    #[test]
    fn no_proxy_of_the_environment_sees_the_password() {
        proxy::tests::without_the_proxy("rabbitmq::management::tests::a_request_to_this_machine_is_answered");
    }

    #[test]
    fn an_address_that_cannot_be_used_is_explained_without_its_secret() {
        for (text, part) in [
            ("rabbit:15672", "http"),
            ("amqp://rabbit", "http"),
            ("http://u:s3cret@127.0.0.1", "credentials"),
            ("http://rabbit.internal:15672", "another machine"),
        ] {
            let error = check(text, None, false).unwrap_err().to_string();
            assert!(error.starts_with("rabbitmq.management_url"), "{error}");
            assert!(error.contains(part) && !error.contains("s3cret"), "{error}");
        }
        for text in ["https://rabbit.internal", "http://127.0.0.1:1"] {
            assert!(check(text, None, false).is_ok(), "{text}");
        }
    }

    /// Goal: a token does not leave this machine unencrypted, whatever is allowed. Oracle: the
    /// setting and the host in the error; a password may, if that is allowed.
    #[test]
    fn a_token_goes_to_another_machine_by_https_only() {
        let token = OAuth::file("/x");
        let config = Config::new("amqps://rabbit").allow_plaintext(true).oauth(token.clone());
        for text in ["http://rabbit.internal:15672", "http://10.0.0.1", "http://localhost.evil.example"] {
            assert!(check(text, None, true).is_ok(), "{text}");
            let config = config.clone().management_url(text);
            for error in [check(text, Some(&token), true).err(), Endpoint::new(&config).err()] {
                let error = error.unwrap().to_string();
                assert!(error.starts_with("rabbitmq.management_url"), "{error}");
                assert!(error.contains("a token would cross the network unencrypted"), "{error}");
                assert!(error.contains(text.split(['/', ':']).nth(3).unwrap()), "{error}");
            }
        }
        for text in
            ["https://rabbit.internal", "http://127.0.0.1:15672", "http://[::1]:1", "http://localhost"]
        {
            assert!(check(text, Some(&token), true).is_ok(), "{text}");
        }
    }
}
