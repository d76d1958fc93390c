//! Whole configurations: what is read, what is refused, and how errors look.

use engine::EngineOptions;
use miette::{Diagnostic, GraphicalReportHandler, GraphicalTheme};
use operate::Broker;

use super::*;

const GOOD: &str = r#"
[[pipeline]]
name = "orders"
[pipeline.database]
url = "postgres://relay:s3cret@127.0.0.1/orders"
schema = "orders"
[pipeline.kafka]
bootstrap_servers = "localhost:9092, 127.0.0.1:9092"
sasl = { username = "relay", password = "s3cret" }
properties = { "socket.keepalive.enable" = "true" }
[pipeline.engine]
window = "8MiB"
lease_ttl = "10s"
on_dead = "pass"

[[pipeline]]
name = "payments"
source = "https://pay.example"
database = { url = "sqlite:///data/pay.db" }
sqs = { region = "eu-central-1", queues = { "order.paid" = "paid.fifo" } }
engine = { message_bytes_max = "256KiB" }

[log]
format = "json"

[[verify.inbox]]
consumer = "billing"
url = "postgres://verifier:s3cret@127.0.0.1/billing"
schema = "billing"
topics = ["order.paid"]
pipelines = ["payments"]
"#;

fn read_with(text: &str, variables: &[(&str, &str)]) -> Result<(Config, Effective), ConfigError> {
    let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    Config::read(Path::new("relay.toml"), text, &Overrides { variables, flags: Vec::new() })
}

/// Returns the error as a person sees it.
fn shown(error: &dyn Diagnostic) -> String {
    let mut out = String::new();
    let theme = GraphicalTheme::unicode_nocolor();
    GraphicalReportHandler::new_themed(theme).with_width(200).render_report(&mut out, error).unwrap();
    out
}

#[test]
fn several_pipelines_are_read_with_their_defaults() {
    let (config, _) = read_with(GOOD, &[]).map_err(|error| shown(&error)).unwrap();
    let [orders, payments] = &config.pipelines[..] else { panic!("two pipelines") };
    assert_eq!((orders.name.as_str(), orders.source.as_str()), ("orders", "/orders"));
    let Broker::Kafka(kafka) = &orders.broker else { panic!("kafka") };
    assert_eq!(kafka.bootstrap_servers, ["localhost:9092", "127.0.0.1:9092"]);
    assert_eq!(orders.settings.window_bytes, 8 << 20);
    assert_eq!(orders.settings.on_dead, engine::DeadPolicy::Pass);
    let limit =
        message::SizeLimit { destination: "Kafka (kafka.message_bytes_max)", ..message::SizeLimit::KAFKA };
    assert_eq!(orders.settings.size_limit, limit);
    assert_eq!(payments.source.as_str(), "https://pay.example");
    assert_eq!(payments.settings.size_limit.message_bytes_max, 256 << 10);
    assert_eq!(config.log.format, LogFormat::Json);
    assert!(config.pipeline("payments").is_some() && config.pipeline("x").is_none());
}

#[test]
fn inboxes_to_compare_with_are_read_and_checked() {
    let (config, _) = read_with(GOOD, &[]).map_err(|error| shown(&error)).unwrap();
    let [inbox] = &config.verify[..] else { panic!("one inbox") };
    assert_eq!((inbox.consumer.as_str(), &inbox.scope, &inbox.effects), ("billing", &None, &None));
    assert!(inbox.is_of("payments") && !inbox.is_of("orders"));
    for (good, wrong, told) in [
        ("pipelines = [\"payments\"]", "pipelines = [\"payment\"]", "no pipeline is called \"payment\""),
        ("consumer = \"billing\"", "consumer = \"\"", "consumer"),
        ("postgres://verifier:s3cret@127.0.0.1/billing", "sqlite:billing.db", "SQLite has no schemas"),
        (
            "postgres://verifier:s3cret@127.0.0.1/billing",
            "postgres://db.example/b?sslmode=disable",
            "db.example",
        ),
    ] {
        let error = shown(&read_with(&GOOD.replace(good, wrong), &[]).map(drop).unwrap_err());
        assert!(error.contains(told) && !error.contains("s3cret"), "{error}");
    }
}

#[test]
fn variables_win_over_the_file_and_flags_over_both() {
    let variables = [
        ("RELAY__ORDERS__KAFKA__LINGER_MS", "9"),
        ("RELAY__ORDERS__KAFKA__CREATE_TOPICS", "true"),
        ("RELAY__PAYMENTS__ENGINE__WINDOW", "2MiB"),
        ("RELAY__LOG__FORMAT", "text"),
    ];
    let (config, _) = read_with(GOOD, &variables).map_err(|error| shown(&error)).unwrap();
    let Broker::Kafka(kafka) = &config.pipelines[0].broker else { panic!("kafka") };
    assert!(kafka.linger_ms == 9 && kafka.create_topics);
    assert_eq!(config.pipelines[1].settings.window_bytes, 2 << 20);
    assert_eq!(config.log.format, LogFormat::Text);
    let flags = vec![Override { flag: "--log-format", path: "log.format", value: "json".into() }];
    let variables = vec![("RELAY__LOG__FORMAT".to_owned(), "text".to_owned())];
    let (config, _) = Config::read(Path::new("r"), GOOD, &Overrides { variables, flags }).ok().unwrap();
    assert_eq!(config.log.format, LogFormat::Json);
}

#[test]
fn what_is_wrong_is_shown_with_its_place() {
    for (from, to, expected) in [
        ("schema =", "shema =", "relay.toml:6:1: pipeline[0].database: unknown setting `shema`"),
        (
            "lease_ttl = \"10s\"",
            "lease_ttl = \"10\"",
            "relay.toml:13:13: pipeline[0].engine.lease_ttl: \"10\" is not a",
        ),
        (
            "lease_ttl = \"10s\"",
            "lease_ttl = \"10ms\"",
            "relay.toml:13:13: pipeline[0].engine.lease_ttl: 10ms is outside",
        ),
        (
            "name = \"payments\"",
            "name = \"orders\"",
            "relay.toml:17:8: pipeline[1].name: \"orders\" is the name of two",
        ),
        ("name = \"payments\"", "name = \"log\"", "\"log\" is reserved: RELAY__LOG__… configures the log"),
        (
            "name = \"payments\"",
            "name = \"Pay ments\"",
            "relay.toml:17:8: pipeline[1].name: relay name \"Pay ments\"",
        ),
        (
            "database = { url = \"sqlite:///data/pay.db\" }",
            "",
            "pipeline[1]: the setting `database` is missing",
        ),
        ("url = \"sqlite:///data/pay.db\"", "", "relay.toml:19:12: pipeline[1].database: url: missing"),
        (
            "sqlite:///data/pay.db",
            "mysql://u:s3cret@h/d",
            "pipeline[1].database.url: the URL begins with \"mysql\"",
        ),
        ("127.0.0.1/orders", "db/orders?sslmode=disable", "allow_plaintext = true"),
        ("url = \"sqlite:///data/pay.db\"", "url = \"sqlite:x\", schema = \"s\"", "SQLite has no schemas"),
        (
            "schema = \"orders\"",
            "schema = \"or-ders\"",
            "relay.toml:6:10: pipeline[0].database.schema: \"or-ders\"",
        ),
        (
            "[pipeline.engine]\nwindow",
            "[pipeline.sqs]\n[pipeline.engine]\nwindow",
            "pipeline[0]: kafka and sqs are configured",
        ),
        ("sqs = {", "#sqs = {", "pipeline[1]: no broker is configured"),
        ("localhost:9092", "k1:9092", "pipeline[0].kafka.tls: k1 is another machine"),
        (
            "localhost:9092",
            "k1",
            "relay.toml:8:21: pipeline[0].kafka.bootstrap_servers: \"k1\" is not of the form",
        ),
        (
            "8MiB",
            "129MiB",
            "pipeline[0].kafka.queue_bytes_max: 268435456 is less than 270532608, twice the window of 129MiB;",
        ),
        ("paid.fifo", "pa.id", "relay.toml:20:60: pipeline[1].sqs.queues.order.paid: is neither"),
        ("256KiB", "2MiB", "relay.toml:21:32: pipeline[1].engine.message_bytes_max: 2MiB is more than SQS"),
        (
            "format = \"json\"",
            "format = \"xml\"",
            "relay.toml:24:10: log.format: \"xml\" is not a valid value",
        ),
        (
            "format = \"json\"",
            "level = \"loud=x=y\"",
            "relay.toml:24:9: log.level: \"loud=x=y\" is not a log level",
        ),
        (
            "format = \"json\"",
            "level = \"infoo\"",
            "relay.toml:24:9: log.level: \"infoo\" is not a log level",
        ),
        ("format = \"json\"", "format = = 1", "relay.toml:24:10: this is not TOML"),
        ("[log]", "[logs]", "relay.toml:23:2: unknown setting `logs`"),
    ] {
        assert!(GOOD.contains(from), "{from}");
        let report = shown(&read_with(&GOOD.replace(from, to), &[]).err().expect(to));
        let flat = report
            .split_whitespace()
            .filter(|word| !matches!(*word, "│" | "×"))
            .collect::<Vec<_>>()
            .join(" ");
        assert!(flat.contains(expected), "{to}: expected {expected}\n{report}");
        assert!(!report.contains("s3cret"), "{report}");
    }
}

#[test]
fn http_endpoints_are_read_and_a_wrong_one_is_named() {
    let with = |section: &str| {
        let sqs = r#"sqs = { region = "eu-central-1", queues = { "order.paid" = "paid.fifo" } }"#;
        assert!(GOOD.contains(sqs));
        GOOD.replace(sqs, section)
    };
    let (config, _) =
        read_with(&with(r#"http = { url = "https://hooks.example.com/in" }"#), &[]).ok().unwrap();
    let connector = config.pipelines[1].broker.connector().unwrap();
    assert_eq!(message::Connector::destination(connector.as_ref()), "http https://hooks.example.com");
    for (section, expected) in [
        (
            r#"http = { url = "https://u:s3cret@hooks.example.com" }"#,
            "pipeline[1].http.url: contains credentials",
        ),
        (r#"http = { url = "http://hooks.example.com" }"#, "http.allow_plaintext = true"),
        ("http = {}", "pipeline[1].http.url: missing"),
    ] {
        let report = shown(&read_with(&with(section), &[]).err().expect(section));
        let flat = report.split_whitespace().filter(|word| *word != "│").collect::<Vec<_>>().join(" ");
        assert!(flat.contains(expected) && !report.contains("s3cret"), "{expected}: {report}");
    }
}

#[test]
fn a_wrong_host_is_shown_where_it_is_written() {
    let text = r#"
[[pipeline]]
name = "orders"
[pipeline.database]
url = "sqlite:orders.db"
[pipeline.http]
endpoint_header = "webhook-url"
[pipeline.http.hosts."localhost:80"]
secret_files = []
[pipeline.http.hosts."*.localhost"]
secret_files = []
"#;
    let report = shown(&read_with(text, &[]).err().unwrap());
    let flat = report.split_whitespace().filter(|word| *word != "│").collect::<Vec<_>>().join(" ");
    let expected = "relay.toml:10:1: pipeline[0].http.hosts.*.localhost: \"*.localhost\" is not a host";
    assert!(flat.contains(expected), "{report}");
}

#[test]
fn a_limit_too_small_for_the_relay_is_refused_under_its_own_name() {
    let text =
        GOOD.replace("sqs = {", "rabbitmq = { url = \"amqp://localhost\", payload_bytes_max = 9 }\n#sqs = {");
    let text = text.replace("engine = { message_bytes_max = \"256KiB\" }", "");
    let report = shown(&read_with(&text, &[]).err().unwrap());
    assert!(report.contains("pipeline[1].rabbitmq.payload_bytes_max: is 9"), "{report}");
    assert!(!report.contains("message_bytes_max:"), "{report}");
}

#[test]
fn a_file_without_pipelines_says_what_to_add() {
    let report = shown(&read_with("[log]\n", &[]).err().unwrap());
    assert!(report.contains("there is no pipeline") && report.contains("[[pipeline]]"), "{report}");
}

#[test]
fn everything_wrong_is_told_at_once() {
    let text = GOOD.replace("10s", "10ms").replace("256KiB", "2MiB");
    let report = shown(&read_with(&text, &[]).err().unwrap());
    assert!(report.contains("2 problems in relay.toml"), "{report}");
    assert!(report.contains("lease_ttl") && report.contains("message_bytes_max"), "{report}");
}

#[test]
fn a_wrong_variable_is_named_and_its_value_is_not_shown() {
    for (name, value, expected) in [
        ("RELAY__ORDERS__DATABSE__URL", "s3cret", "pipeline[0]: unknown setting `databse`"),
        ("RELAY__ORDERS__KAFKA__LINGER_MS", "s3cret", "pipeline[0].kafka.linger_ms: is not a valid number"),
        ("RELAY__ORDERS__ENGINE__POLL_MIN", "1s", "pipeline[0].engine.poll_min: 1s is longer than poll_max"),
        ("RELAY__REFUNDS__DATABASE__URL", "s3cret", "the file has no pipeline named REFUNDS"),
    ] {
        let report = shown(&read_with(GOOD, &[(name, value)]).err().unwrap());
        assert!(report.contains(&format!("{name}: ")) && report.contains(expected), "{report}");
        assert!(!report.contains("s3cret"), "{report}");
    }
}

#[test]
fn what_is_in_force_is_printed_without_secrets_and_can_be_read_again() {
    let (_, effective) = read_with(GOOD, &[("RELAY__ORDERS__KAFKA__SASL__PASSWORD", "s3cret")]).ok().unwrap();
    let (toml, json) = (effective.to_string(), effective.to_json().to_string());
    for text in [&toml, &json] {
        assert!(!text.contains("s3cret") && text.contains("relay:***@127.0.0.1"), "{text}");
    }
    assert!(toml.contains("# from RELAY__ORDERS__KAFKA__SASL__PASSWORD"), "{toml}");
    assert!(toml.contains("checkpoint_interval = \"200ms\"") && toml.contains("# default"), "{toml}");
    let again = read_with(&toml, &[]).map_err(|error| format!("{toml}\n{}", shown(&error))).unwrap();
    assert_eq!(again.0.pipelines[0].settings.window_bytes, 8 << 20);
}

#[test]
fn tokens_of_kafka_are_read_and_printed_without_the_secret_of_their_client() {
    let oauth = "sasl = { mechanism = \"OAUTHBEARER\", extensions = { logicalCluster = \"lkc-1\" }, oauth = { \
                 token_url = \"https://login.example/token\", client_id = \"relay\", client_secret = \"s3cret\" } }";
    let text = GOOD.replacen("sasl = { username = \"relay\", password = \"s3cret\" }", oauth, 1);
    let variable = "RELAY__ORDERS__KAFKA__SASL__OAUTH__CLIENT_SECRET";
    let (config, effective) =
        read_with(&text, &[(variable, "s3cret")]).map_err(|error| shown(&error)).unwrap();
    let (toml, json) = (effective.to_string(), effective.to_json().to_string());
    for text in [&toml, &json, &format!("{config:?}")] {
        assert!(!text.contains("s3cret") && text.contains("lkc-1"), "{text}");
    }
    assert!(toml.contains("login.example/token") && toml.contains(&format!("# from {variable}")), "{toml}");
    let both = text.replacen("client_id", "token_file = \"/x\", client_id", 1);
    let error = shown(&read_with(&both, &[]).err().unwrap());
    assert!(error.contains("kafka.sasl.oauth.token_url") && !error.contains("s3cret"), "{error}");
}

#[test]
fn every_setting_of_the_engine_is_explained_shown_and_documented() {
    let schema = schema();
    let settings = schema["$defs"]["EngineSection"]["properties"].as_object().unwrap();
    let text = GOOD.replacen("[pipeline.engine]", "[pipeline.engine]\noversize = \"chunk\"", 1);
    let (_, effective) = read_with(&text, &[]).map_err(|error| shown(&error)).unwrap();
    let shown = &effective.to_json()["pipeline"][0]["engine"];
    let page = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/configuration.md"));
    assert!(settings.len() >= 16, "{settings:?}");
    for (name, setting) in settings {
        assert!(setting.get("description").is_some(), "{name} has no comment in `EngineSection`");
        assert!(shown.get(name).is_some(), "`relay config show` leaves {name} out");
        assert!(page.contains(&format!("\n| `{name}` | ")), "docs/configuration.md leaves {name} out");
    }
    for (name, value) in EngineOptions::default().values() {
        let rows = [format!("\n| `{name}` | `{value}`"), format!("\n| `{name}` | {value} ")];
        assert!(rows.iter().any(|row| page.contains(row)), "docs/configuration.md: {name} is {value}");
    }
}

#[test]
fn no_secret_is_in_the_debug_output() {
    let (config, _) = read_with(GOOD, &[]).ok().unwrap();
    assert!(!format!("{config:?}").contains("s3cret"));
}

const COLLECTOR: &str = "[otlp]\nendpoint = 'http://127.0.0.1:4318/'\nsampling = 0.25\n\
                         headers = { authorization = 'Bearer s3cret' }\n";

#[cfg(feature = "otlp")]
#[test]
fn a_collector_is_read_from_the_file_and_shown_without_its_secrets() {
    let (config, effective) =
        read_with(&format!("{GOOD}{COLLECTOR}"), &[("RELAY__OTLP__SERVICE_NAME", "shop-relay")])
            .map_err(|error| shown(&error))
            .unwrap();
    let otlp = config.otlp.unwrap();
    assert_eq!(otlp.traces.as_deref(), Some("http://127.0.0.1:4318/v1/traces"));
    assert_eq!(otlp.metrics.as_deref(), Some("http://127.0.0.1:4318/v1/metrics"));
    assert_eq!((otlp.sampling, otlp.service_name.as_str()), (0.25, "shop-relay"));
    let text = effective.to_string();
    assert!(!text.contains("Bearer") && text.contains("metrics_interval = \"1m\""), "{text}");
    assert!(text.contains("# from RELAY__OTLP__SERVICE_NAME"), "{text}");
}

#[cfg(feature = "otlp")]
#[test]
fn the_standard_variables_name_a_collector_too() {
    assert!(read_with(GOOD, &[]).map_err(|error| shown(&error)).unwrap().0.otlp.is_none());
    let variables = [
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://otel.example/v1/traces"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "api-key=s3cret"),
    ];
    let (config, effective) = read_with(GOOD, &variables).map_err(|error| shown(&error)).unwrap();
    let otlp = config.otlp.unwrap();
    assert_eq!(otlp.traces.as_deref(), Some("https://otel.example/v1/traces"));
    assert!(otlp.metrics.is_none());
    let text = effective.to_string();
    assert!(text.contains("# from OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") && !text.contains("s3cret"), "{text}");
}

#[cfg(feature = "otlp")]
#[test]
fn a_collector_that_cannot_be_used_is_refused_with_its_setting() {
    for (section, told) in [
        ("[otlp]\n", "nothing would be exported"),
        ("[otlp]\nendpoint = 'http://collector:4318'\n", "allow_plaintext = true"),
        ("[otlp]\nendpoint = 'https://u:s3cret@otel.example'\n", "otlp.endpoint: contains credentials"),
        ("[otlp]\nendpoint = 'https://a'\nsampling = 2\n", "otlp.sampling: 2 is outside 0 to 1"),
        ("[otlp]\nendpoint = 'https://a'\ntimeout = '0s'\n", "otlp.timeout"),
        ("[otlp]\nendpoint = 'https://a'\nheaders = {}\nheaders_file = 'b'\n", "not both"),
        ("[otlp]\nendpoint = 'https://a'\nheaders = { 'a b' = 's3cret' }\n", "is not a header name"),
        ("[otlp]\nendpoint = 'https://a'\nprotocol = 'grpc'\n", "protocol"),
    ] {
        let text = shown(&read_with(&format!("{GOOD}{section}"), &[]).err().unwrap());
        assert!(text.contains(told) && !text.contains("s3cret@") && !text.contains("'s3cret'"), "{text}");
    }
}

#[cfg(not(feature = "otlp"))]
#[test]
fn a_relay_without_the_export_refuses_its_section_and_ignores_the_variables() {
    let text = shown(&read_with(&format!("{GOOD}{COLLECTOR}"), &[]).err().unwrap());
    assert!(text.contains("was built without") && text.contains("feature `otlp`"), "{text}");
    let variables = [("OTEL_EXPORTER_OTLP_ENDPOINT", "nonsense")];
    assert!(read_with(GOOD, &variables).map_err(|error| shown(&error)).unwrap().0.otlp.is_none());
}
