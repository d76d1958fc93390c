//! A call that is dropped while its transaction begins, by its caller or by its own time limit, on
//! a pool that does not clean its sessions when they come back. The session must not stay inside
//! the transaction: what its next user writes would be lost.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::future::Future;
use std::time::Duration;

use sqlx::postgres::{PgPoolOptions, PgSslMode};
use sqlx::{AssertSqlSafe, PgPool};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// The treatment of the statements that begin a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Passes them on.
    Open,
    /// Withholds the answer to the next one.
    Armed,
    /// Withholds the answer to one.
    Withheld,
}

/// A pool on a line to PostgreSQL that can withhold the answer to a BEGIN.
pub(crate) struct Line {
    pub(crate) pool: PgPool,
    /// The application name of its sessions.
    name: String,
    way: watch::Sender<Way>,
}

impl Line {
    /// Opens a pool with the user and the database of another one.
    pub(crate) async fn beside(pool: &PgPool) -> Self {
        let options = (*pool.connect_options()).clone();
        let target = format!("{}:{}", options.get_host(), options.get_port());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let way = watch::Sender::new(Way::Open);
        let shared = way.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(&target).await.unwrap();
                tokio::spawn(carry(client, server, shared.clone()));
            }
        });
        let name = format!("begun {}", uuid::Uuid::now_v7());
        let options = options.host("127.0.0.1").port(port).ssl_mode(PgSslMode::Disable);
        let options = options.application_name(&name);
        let pool =
            PgPoolOptions::new().max_connections(Self::CONNECTIONS).connect_with(options).await.unwrap();
        Self { pool, name, way }
    }

    /// Maximum connections of the pool.
    const CONNECTIONS: u32 = 4;
    /// The time limit of the calls that it ends.
    pub(crate) const LIMIT: Duration = Duration::from_secs(4);

    /// Withholds the answer to the next BEGIN.
    pub(crate) fn arm(&self) {
        self.way.send_replace(Way::Armed);
    }

    /// Drops a call while the answer to its BEGIN is withheld, lets the answer pass, and waits
    /// until no session of the pool is inside a transaction. `admin` queries the server.
    pub(crate) async fn drop_while_it_begins<T>(&self, admin: &PgPool, call: impl Future<Output = T>) {
        let sql = format!(
            "SELECT pid FROM pg_stat_activity WHERE application_name = '{}' AND state LIKE 'idle in %'",
            self.name
        );
        let inside = async || {
            let sessions = sqlx::query(AssertSqlSafe(sql.clone())).fetch_all(admin).await?;
            Ok::<_, sqlx::Error>(sessions.len())
        };
        let begun = async {
            self.withheld().await;
            tests::eventually("it begins", async || Ok((inside().await? == 1).then_some(()))).await.unwrap();
        };
        tokio::select! {
            _ = call => panic!("it has not waited for its transaction"),
            () = begun => {}
        }
        self.way.send_replace(Way::Open);
        let ended = async || Ok((inside().await? == 0).then_some(()));
        tests::eventually("no session stays inside a transaction", ended).await.unwrap();
    }

    /// Waits until the answer to a BEGIN is withheld.
    pub(crate) async fn withheld(&self) {
        self.way.subscribe().wait_for(|way| *way == Way::Withheld).await.unwrap();
    }

    /// Withholds the answer to the BEGIN of a call until its own time limit has ended it, then
    /// [lets it pass](Self::answer_late).
    pub(crate) async fn outlast<T, E>(&self, admin: &PgPool, call: impl Future<Output = Result<T, E>>) {
        self.arm();
        assert!(call.await.is_err(), "it has not waited for its transaction");
        self.answer_late(admin).await;
    }

    /// Lets the withheld answer pass once no call waits for it. Checks that the next write of each
    /// session of the pool, outside any transaction, is stored: another session sees it while the
    /// writer is still there.
    pub(crate) async fn answer_late(&self, admin: &PgPool) {
        let table = format!("public.written_{}", uuid::Uuid::now_v7().simple());
        let create = format!("CREATE TABLE {table} (session int); GRANT INSERT ON {table} TO PUBLIC");
        sqlx::raw_sql(AssertSqlSafe(create)).execute(admin).await.unwrap();
        assert_eq!(*self.way.borrow(), Way::Withheld, "no BEGIN was sent");
        self.way.send_replace(Way::Open);
        let returned = async || Ok((self.pool.num_idle() == self.pool.size() as usize).then_some(()));
        tests::eventually("its connection is back in the pool", returned).await.unwrap();
        let mut borrowed = Vec::new();
        for _ in 0..Self::CONNECTIONS {
            let mut connection = self.pool.acquire().await.unwrap();
            let write = format!("INSERT INTO {table} (session) VALUES (pg_backend_pid())");
            sqlx::query(AssertSqlSafe(write)).execute(&mut *connection).await.unwrap();
            borrowed.push(connection);
        }
        let count = format!("SELECT count(*) FROM {table}");
        let stored: i64 = sqlx::query_scalar(AssertSqlSafe(count)).fetch_one(admin).await.unwrap();
        assert_eq!(stored, i64::from(Self::CONNECTIONS), "a confirmed write is not committed");
    }
}

async fn carry(mut client: TcpStream, mut server: TcpStream, way: watch::Sender<Way>) {
    let (mut from_client, mut from_server) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    loop {
        tokio::select! {
            read = client.read(&mut from_client) => {
                let Ok(n @ 1..) = read else { return };
                let begins = from_client[..n].windows(5).any(|word| word == b"BEGIN");
                let is_withheld = begins && way.send_if_modified(|way| {
                    let is_armed = *way == Way::Armed;
                    if is_armed {
                        *way = Way::Withheld;
                    }
                    is_armed
                });
                if server.write_all(&from_client[..n]).await.is_err() {
                    return;
                }
                if is_withheld && way.subscribe().wait_for(|way| *way == Way::Open).await.is_err() {
                    return;
                }
            }
            read = server.read(&mut from_server) => {
                let Ok(n @ 1..) = read else { return };
                if client.write_all(&from_server[..n]).await.is_err() {
                    return;
                }
            }
        }
    }
}
