//! SQS: `ElasticMQ`, queues in memory.

use super::{
    Installed, Service,
    fault::Fault,
    home::Home,
    java::{self, Bundle},
    probe,
    settings::Port,
};
use std::process::Command;

pub(crate) struct Sqs;

const BUNDLE: Bundle =
    Bundle { version: "1.7.1", artifacts: &[("org.elasticmq", "elasticmq-server_2.13", "1.7.1")] };

static PORT: Port = Port { variable: "OUTBOX_SQS_PORT", default: 19324 };

impl Service for Sqs {
    fn client_port(&self) -> &'static Port {
        &PORT
    }

    fn url(&self, port: u16) -> String {
        format!("http://127.0.0.1:{port}")
    }

    fn install(&self, home: &Home, phase: &dyn Fn(&str)) -> Result<Installed, Fault> {
        let programs = java::install(home, &BUNDLE, phase)?;
        Ok(Installed { version: BUNDLE.version.to_owned(), programs })
    }

    fn prepare(&self, home: &Home, installed: &Installed) -> Result<Command, Fault> {
        let configuration = home.write("elasticmq.conf", &configuration(PORT.number()?))?;
        let mut command = java::command(&installed.programs, 256);
        command
            .arg(format!("-Dconfig.file={}", configuration.display()))
            .arg("org.elasticmq.server.Main")
            .current_dir(&home.dir);
        Ok(command)
    }

    fn probe(&self, port: u16) -> Result<(), String> {
        let question = format!("GET /?Action=ListQueues HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\n\r\n");
        let answer: [u8; 12] = probe::ask(port, question.as_bytes())?;
        // "HTTP/1.1 200" or "HTTP/1.0 200"
        if answer.ends_with(b" 200") { Ok(()) } else { Err(probe::unexpected(&answer)) }
    }
}

fn configuration(port: u16) -> String {
    format!(
        r#"include classpath("application.conf")
node-address {{ protocol = http, host = "127.0.0.1", port = {port}, context-path = "" }}
rest-sqs {{ enabled = true, bind-hostname = "127.0.0.1", bind-port = {port}, sqs-limits = strict }}
rest-stats {{ enabled = false }}
generate-node-address = false
queues {{}}
"#
    )
}
