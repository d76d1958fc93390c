//! The program of docs/quick-start.md, a producer, a relay and a consumer in one service; and the
//! document itself.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use sqlx::Postgres;
use tests::cluster::free_port;
use tests::eventually::when;
use tests::{Backend, Database, Outcome, Stage, brokers, eventually, relay_process};
use tokio::process::Command;

use crate::document::{Shell, Step, is_as_printed, steps};
use crate::program::{self, Running};

tests::cases! { "quick_start/{case}":
    anywhere + postgres kafka { "postgres/kafka" = bills }
    anywhere + postgres kafka xtask { the_document = document }
    anywhere { a_document_is_read_as_it_is_written = reads }
}

/// Query for the number of orders in this database whose message has taken effect. The topic may
/// hold orders from earlier runs.
const BILLED: &str = "SELECT count(*) FROM outbox_message JOIN inbox_message USING (message_id)";

/// Goal: the program places, relays and bills its orders once. Terminated and started again, it
/// continues. Oracle: the tables.
async fn bills(stage: Stage) -> Outcome {
    let kafka = brokers::open(&stage, Backend::Kafka).await?;
    kafka.create_topic("orders").await?;
    let database = Database::<Postgres>::empty(&stage).await?;
    let address = Backend::Kafka.address()?;
    let settings = [("DATABASE_URL", database.url.as_str()), ("KAFKA", &address)];
    for orders in [3, 6] {
        let service = Running::start(&stage, "quick_start", &settings)?;
        eventually(&format!("{orders} orders are billed"), || async {
            // The query fails until the program has created the tables.
            Ok(when(database.integer(BILLED).await.is_ok_and(|billed| billed == orders)))
        })
        .await?;
        let ended = service.terminate().await?;
        assert!(ended.success(), "{ended}");
    }
    let effects = "SELECT (SELECT count(*) FROM invoice) - (SELECT count(*) FROM inbox_message)";
    assert_eq!(database.integer(effects).await?, 0, "one invoice for each message");
    let unbilled = "SELECT count(*) FROM orders WHERE id NOT IN (SELECT order_id FROM invoice)";
    assert_eq!(database.integer(unbilled).await?, 0, "every order is billed");
    Ok(())
}

const DOCUMENT: &str = include_str!("../../../docs/quick-start.md");

/// A substitute for cargo: the task runner and the programs are already built, and another build of
/// them would last as long as a whole test.
const CARGO: &str = "#!/bin/sh\n\
    case \"$1 $2\" in\n\
    \"xtask services\") shift; cd \"$CHECKOUT\" && exec \"$OUTBOX_XTASK\" \"$@\" ;;\n\
    \"build -p\") exit 0 ;;\n\
    *) echo \"the test knows no cargo $*\"; exit 1 ;;\n\
    esac\n";

/// Variables of the servers that all tests share. If these were set, the document would not start
/// its own servers.
const SHARED: [&str; 4] = ["OUTBOX_POSTGRES_URL", "OUTBOX_KAFKA_BROKERS", "DATABASE_URL", "KAFKA"];

/// Shows where the messages are when the document fails before its end.
const EVIDENCE: &str = "exec 2>&1; export PGCONNECT_TIMEOUT=10 PGOPTIONS='-c statement_timeout=10s'; eval \"$(cargo xtask services env)\"; \
    psql \"${OUTBOX_POSTGRES_URL%/*}/outbox_quick_start\" -x \
    -c 'SELECT id, message_id, topic, key FROM outbox_message' -c 'SELECT * FROM outbox_relay' \
    -c 'SELECT * FROM outbox_node' -c 'SELECT consumer, message_id FROM inbox_message' \
    -c 'SELECT * FROM invoice'; tail -n 20 \"$OUTBOX_SERVICES_DIR\"/kafka/logs/server.log";

/// Goal: a user who follows the document line by line sees the documented output, on servers that
/// it starts and stops itself. Oracle: each exit code, and each printed line.
async fn document(_: Stage) -> Outcome {
    // PostgreSQL runs as another user, who must be able to enter the folder.
    let everybody = fs::Permissions::from_mode(0o755);
    let folder = tempfile::Builder::new().permissions(everybody.clone()).tempdir()?;
    let (programs, bin) = (folder.path().join("target/debug"), folder.path().join("bin"));
    for folder in [&programs, &bin] {
        fs::create_dir_all(folder)?;
    }
    symlink(program::path("quick_start")?, programs.join("quick_start"))?;
    symlink(relay_process::program()?, programs.join("relay"))?;
    fs::write(bin.join("cargo"), CARGO)?;
    fs::set_permissions(bin.join("cargo"), everybody)?;

    let mut path = bin.clone().into_os_string();
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    let checkout = std::path::absolute("..")?;
    let services = folder.path().join("services");
    let there = ["OUTBOX_DOWNLOADS_DIR", "OUTBOX_SERVICES_DIR"].into_iter().find_map(std::env::var_os);
    let downloads = there.map_or_else(|| checkout.join("target/services"), PathBuf::from);
    let mut variables = vec![
        ("PATH", path),
        ("CHECKOUT", checkout.into()),
        ("TMPDIR", folder.path().into()),
        ("OUTBOX_XTASK", Backend::Xtask.address()?.into()),
        ("OUTBOX_SERVICES_DIR", services.into()),
        ("OUTBOX_DOWNLOADS_DIR", downloads.into()),
    ];
    for port in ["OUTBOX_POSTGRES_PORT", "OUTBOX_KAFKA_PORT", "OUTBOX_KAFKA_CONTROLLER_PORT"] {
        variables.push((port, free_port()?.to_string().into()));
    }
    let place = |command: &mut Command| {
        command.current_dir(&folder).envs(variables.clone());
        SHARED.iter().for_each(|name| _ = command.env_remove(name));
    };
    let [mut shell, mut evidence] = ["bash"; 2].map(Command::new);
    let mut down = Command::new(bin.join("cargo"));
    place(shell.arg("--norc"));
    place(evidence.args(["-c", EVIDENCE]));
    place(down.args(["xtask", "services", "down", "--purge"]));
    let mut followed = Shell::start(shell)?.follow(&steps(DOCUMENT)).await;
    if let Err(error) = followed {
        let tables = evidence.output().await.map(|printed| printed.stdout).unwrap_or_default();
        let (logs, tables) = (logs(folder.path()), String::from_utf8_lossy(&tables));
        // The reason comes last: a long report may be cut.
        followed = Err(format!("{logs}\n{tables}\n{error}").into());
    }
    // This stops the servers even if a step has not ended, because they are not children of the
    // shell.
    down.output().await?;
    followed
}

/// Returns the logs that the document's programs left in folders it created.
fn logs(folder: &Path) -> String {
    let made = fs::read_dir(folder).into_iter().flatten().flatten();
    let logs = made.flat_map(|made| ["service.log", "relay.log"].map(|log| made.path().join(log)));
    logs.filter_map(|log| fs::read_to_string(log).ok()).collect()
}

/// Oracle: a document with a command over several lines, and both matching and differing outputs.
async fn reads() {
    let document =
        "# Title\n```toml\n$ no = 1\n```\n```console\n$ cat <<END\n$ a\nEND\nb\n$ ls\none\n…\n```\n";
    let step = |command: &str, printed: &[&str]| Step {
        command: command.to_owned(),
        printed: printed.iter().map(ToString::to_string).collect(),
    };
    assert_eq!(steps(document), [step("cat <<END\n$ a\nEND", &["b"]), step("ls", &["one", "…"])]);
    let is = |printed: &str, found: &str| {
        let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
        is_as_printed(&lines(printed), &lines(found))
    };
    assert!(is("a\n…\nd", "a\nb\nc\nd") && is("…", "") && is("took … ms of …", "took 3 ms of 7"));
    assert!(!is("a\n…\nd", "a\nb") && !is("", "a") && !is("a", "") && !is("took … ms", "took 3 s"));
}
