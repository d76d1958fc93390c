//! SQS: `ElasticMQ`, with queues in memory, or in files if they must survive a crash.

use super::{
    Installed, Service,
    fault::{Doing, Fault},
    home::Home,
    java::{self, Bundle},
    probe,
    settings::{self, Port},
};
use std::{fs, path::Path, process::Command};

pub(crate) struct Sqs;

const BUNDLE: Bundle = Bundle {
    version: "1.7.1",
    artifacts: &[("org.elasticmq", "elasticmq-server_2.13", "1.7.1")],
    digest: "6575f6e1f7968c697f27ccd9cfc52c3cf0e49af40ae28228a85e835b7c0840bc",
};

static PORT: Port = Port { variable: "OUTBOX_SQS_PORT", default: 19324 };

impl Service for Sqs {
    fn client_port(&self) -> &'static Port {
        &PORT
    }

    fn url(&self, port: u16) -> String {
        format!("http://127.0.0.1:{port}")
    }

    fn install(&self, home: &Home, phase: &dyn Fn(&str)) -> Result<Installed, Fault> {
        let programs = java::install(home.name.as_str(), &BUNDLE, phase)?;
        Ok(Installed { version: BUNDLE.version.to_owned(), programs })
    }

    fn prepare(&self, home: &Home, installed: &Installed) -> Result<Command, Fault> {
        let mut configuration = configuration(PORT.number()?);
        if settings::sqs_durable()? {
            let data = self.data(home)?;
            fs::create_dir_all(&data).doing(format_args!("cannot create {}", data.display()))?;
            configuration.push_str(&storage(&data));
        }
        let configuration = home.write("elasticmq.conf", &configuration)?;
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

/// Keeps queues and messages in files. Without a delay of zero, H2 would write acknowledged
/// messages half a second later.
fn storage(data: &Path) -> String {
    let data = data.display();
    format!(
        r#"queues-storage {{ enabled = true, path = "{data}/queues.conf" }}
messages-storage {{ enabled = true, uri = "jdbc:h2:{data}/messages;WRITE_DELAY=0" }}
"#
    )
}
