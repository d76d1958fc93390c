//! Apache Kafka: one node, broker and controller in one process (KRaft).

use super::{
    Installed, Secure, Service,
    certificates::Certificates,
    fault::{Doing, Fault},
    home::Home,
    java::{self, Bundle},
    probe,
    process::run,
    settings::{self, Port, Proxied},
};
use std::{fs, path::Path, process::Command};

pub(crate) struct Kafka;

const BUNDLE: Bundle = Bundle {
    version: "4.1.0",
    artifacts: &[
        ("org.apache.kafka", "kafka_2.13", "4.1.0"),
        // Kafka's jars bring log4j, but not the bridge from its slf4j 1.7.
        ("org.apache.logging.log4j", "log4j-slf4j-impl", "2.24.3"),
    ],
    digest: "ed221617419d07bb7659b744f3b4c53389f757df65c937c410a73b099b49d884",
};

static PORT: Port = Port { variable: "OUTBOX_KAFKA_PORT", default: 19092 };
static OTHERS: [Port; 1] = [Port { variable: "OUTBOX_KAFKA_CONTROLLER_PORT", default: 19093 }];
/// TLS for clients with a certificate.
static TLS: Port = Port { variable: "OUTBOX_KAFKA_TLS_PORT", default: 19094 };
/// TLS for users with a password or a token.
static SASL: Port = Port { variable: "OUTBOX_KAFKA_SASL_PORT", default: 19095 };

/// User and password of the listener that requires them.
const WHO: &str = "outbox";

/// The audience and the issuer of tokens that the listener accepts.
const TOKEN_AUDIENCE: &str = "kafka";
const TOKEN_ISSUER: &str = "https://issuer.test";

/// "outbox-toolkit-1", 16 bytes in base64url: clients see the same cluster after a purge.
const CLUSTER_ID: &str = "b3V0Ym94LXRvb2xraXQtMQ";

impl Service for Kafka {
    fn client_port(&self) -> &'static Port {
        &PORT
    }

    fn other_ports(&self) -> &'static [Port] {
        &OTHERS
    }

    fn url(&self, port: u16) -> String {
        format!("127.0.0.1:{port}")
    }

    fn secure(&self) -> Result<Vec<Secure>, Fault> {
        let mut found = Vec::new();
        for (port, variable) in [(&TLS, "OUTBOX_KAFKA_TLS_BROKERS"), (&SASL, "OUTBOX_KAFKA_SASL_BROKERS")] {
            if let Some(number) = port.beside(&PORT)? {
                let (port_variable, url) = (Some(port.variable), self.url(number));
                found.push(Secure { variable, port_variable, port: number, url, offered: probe::listens });
            }
        }
        Ok(found)
    }

    fn install(&self, home: &Home, phase: &dyn Fn(&str)) -> Result<Installed, Fault> {
        let programs = java::install(home.name.as_str(), &BUNDLE, phase)?;
        Ok(Installed { version: BUNDLE.version.to_owned(), programs })
    }

    fn prepare(&self, home: &Home, installed: &Installed) -> Result<Command, Fault> {
        let data = self.data(home)?;
        fs::create_dir_all(&data).doing(format_args!("cannot create {}", data.display()))?;
        let logging = home.write("log4j2.properties", LOGGING)?;
        let logging = format!("-Dlog4j2.configurationFile={}", logging.display());
        let [controller] = &OTHERS;
        let mut more =
            settings::kafka_proxied()?.iter().enumerate().map(Listener::proxied).collect::<Vec<_>>();
        let secure = [("SSL", TLS.beside(&PORT)?), ("SASL_SSL", SASL.beside(&PORT)?)];
        more.extend(secure.into_iter().filter_map(|(name, port)| Some(Listener::secure(name, port?))));
        let mut properties =
            properties(PORT.number()?, controller.number()?, &more, &data.display().to_string());
        if more.iter().any(|listener| listener.protocol != "PLAINTEXT") {
            properties.push_str(&security(&Certificates::made()?));
        }
        let properties = home.write("server.properties", &properties)?;
        if !data.join("meta.properties").exists() {
            let mut format = java::command(&installed.programs, 128);
            format.arg(&logging).arg("kafka.tools.StorageTool");
            format.args(["format", "--cluster-id", CLUSTER_ID, "--config"]).arg(&properties);
            for mechanism in ["SCRAM-SHA-256", "SCRAM-SHA-512"] {
                format.arg("--add-scram").arg(format!("{mechanism}=[name={WHO},password={WHO}]"));
            }
            run(&mut format, "formatting Kafka's storage")?;
        }
        // 320 MB: 256 MB suffices for tests, the rest is room for the benches' batches.
        let mut command = java::command(&installed.programs, 320);
        // Without this, Kafka reads no keys of issuers.
        let keys = jwks_url(&Certificates::folder()?.join("jwks.json"));
        command.arg(format!("-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={keys}"));
        command.arg(&logging).arg("kafka.Kafka").arg(&properties).current_dir(&home.dir);
        Ok(command)
    }

    /// Asks with `ApiVersions` version 0, which a broker answers only once it processes requests.
    fn probe(&self, port: u16) -> Result<(), String> {
        const REQUEST: [u8; 19] = *b"\0\0\0\x0f\0\x12\0\0\0\0\0\x07\0\x05xtask";
        // Length, the correlation id of the request, error code 0.
        let answer: [u8; 10] = probe::ask(port, &REQUEST)?;
        if answer[4..] == *b"\0\0\0\x07\0\0" { Ok(()) } else { Err(probe::unexpected(&answer)) }
    }
}

/// A listener besides the plain one.
struct Listener {
    name: String,
    protocol: &'static str,
    listening: u16,
    announced: u16,
}

impl Listener {
    fn proxied((number, ports): (usize, &Proxied)) -> Self {
        let Proxied { listening, announced } = *ports;
        Self { name: format!("PROXIED{number}"), protocol: "PLAINTEXT", listening, announced }
    }

    fn secure(protocol: &'static str, port: u16) -> Self {
        Self { name: protocol.to_owned(), protocol, listening: port, announced: port }
    }
}

fn properties(port: u16, controller_port: u16, more: &[Listener], data: &str) -> String {
    let (mut listeners, mut announced, mut protocols) = (String::new(), String::new(), String::new());
    for Listener { name, protocol, listening, announced: told } in more {
        listeners.push_str(&format!(",{name}://127.0.0.1:{listening}"));
        announced.push_str(&format!(",{name}://127.0.0.1:{told}"));
        protocols.push_str(&format!(",{name}:{protocol}"));
    }
    format!(
        "process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller_port}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}{listeners}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}{announced}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT{protocols}
inter.broker.listener.name=PLAINTEXT
controller.listener.names=CONTROLLER
log.dirs={data}
auto.create.topics.enable=false
num.partitions=4
# One node: every internal topic has one copy, and few partitions so that a start is quick.
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
# After a crash the old session must end before the node may register again: 4 s instead of 9.
broker.session.timeout.ms=4000
broker.heartbeat.interval.ms=1000
# Consumer groups of tests start at once.
group.initial.rebalance.delay.ms=0
# Small heap: the default cleaner buffer alone is 128 MB.
log.cleaner.dedupe.buffer.size=8388608
log.index.size.max.bytes=1048576
num.network.threads=2
num.io.threads=4
"
    )
}

/// Returns the properties that the listeners SSL and SASL_SSL need.
fn security(certificates: &Certificates) -> String {
    let module = "org.apache.kafka.common.security";
    format!(
        "ssl.keystore.type=PEM
ssl.keystore.location={}
ssl.truststore.type=PEM
ssl.truststore.location={}
listener.name.ssl.ssl.client.auth=required
sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER
listener.name.sasl_ssl.plain.sasl.jaas.config={module}.plain.PlainLoginModule required user_{WHO}=\"{WHO}\";
listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config={module}.scram.ScramLoginModule required;
listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config={module}.scram.ScramLoginModule required;
listener.name.sasl_ssl.oauthbearer.sasl.jaas.config={module}.oauthbearer.OAuthBearerLoginModule required;
listener.name.sasl_ssl.oauthbearer.sasl.server.callback.handler.class={module}.oauthbearer.OAuthBearerValidatorCallbackHandler
# A connection ends with its token unless the client authenticates again.
listener.name.sasl_ssl.oauthbearer.connections.max.reauth.ms=3600000
sasl.oauthbearer.jwks.endpoint.url={}
# The default validator of Kafka 4.1.0 does not verify signatures here.
sasl.oauthbearer.jwt.validator.class={module}.oauthbearer.BrokerJwtValidator
sasl.oauthbearer.expected.audience={TOKEN_AUDIENCE}
sasl.oauthbearer.expected.issuer={TOKEN_ISSUER}
",
        certificates.file("server-keystore.pem").display(),
        certificates.file("ca.pem").display(),
        jwks_url(&certificates.file("jwks.json")),
    )
}

fn jwks_url(file: &Path) -> String {
    format!("file://{}", file.display())
}

/// Logs warnings, the start, and whether the node was fenced for a time because it was too slow.
const LOGGING: &str = "\
rootLogger.level=WARN
rootLogger.appenderRef.console.ref=console
appender.console.type=Console
appender.console.name=console
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=%d{ISO8601} %p %c{1} %m%n
logger.server.name=kafka.server.KafkaRaftServer
logger.server.level=INFO
logger.fencing.name=org.apache.kafka.controller.ReplicationControlManager
logger.fencing.level=INFO
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_listener_is_announced_with_its_protocol() {
        let more = [
            Listener::proxied((0, &Proxied { listening: 3, announced: 4 })),
            Listener::secure("SASL_SSL", 5),
        ];
        let text = properties(1, 2, &more, "/data");
        for line in [
            "listeners=PLAINTEXT://127.0.0.1:1,CONTROLLER://127.0.0.1:2,PROXIED0://127.0.0.1:3,SASL_SSL://127.0.0.1:5",
            "advertised.listeners=PLAINTEXT://127.0.0.1:1,PROXIED0://127.0.0.1:4,SASL_SSL://127.0.0.1:5",
            "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,PROXIED0:PLAINTEXT,SASL_SSL:SASL_SSL",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}: {text}");
        }
    }
}
