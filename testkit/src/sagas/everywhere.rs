//! Runs a saga with one fault at a time.

use std::collections::BTreeMap;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;

use saga::SagaFunction;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sqlx::{Pool, Sqlite};

use super::course::{Course, Register};
use super::ends::{End, compare};
use super::faults::{Fault, PASSES};
use crate::database::Database;
use crate::failure::Failure;
use crate::home::{self, Open};

type Checking = Pin<Box<dyn Future<Output = Result<(), String>> + Send>>;
pub(super) type Check<DB> = Arc<dyn Fn(Pool<DB>) -> Checking + Send + Sync>;

/// Runs a saga from start to end, again and again, each time with its own tables. The first run is
/// undisturbed. Then a worker disappears at each crash point, at each pass of it, with a second
/// worker beside it. Then leases end too soon, and replies come early, twice and late. Every end
/// must equal the undisturbed one: state, output, messages, results and undos.
///
/// ```
/// use saga::{Run, Stop};
/// use sqlx::Sqlite;
///
/// async fn transfer(saga: &mut Run<Sqlite>, cents: i64) -> Result<(), Stop> {
///     saga.step("take", async |tx| {
///         let take = "UPDATE account SET cents = cents - $1 WHERE name = 'alice'";
///         sqlx::query(take).bind(cents).execute(&mut **tx).await?;
///         Ok(())
///     })
///     .undo(async |tx, (): &()| {
///         let back = "UPDATE account SET cents = cents + $1 WHERE name = 'alice'";
///         sqlx::query(back).bind(cents).execute(&mut **tx).await?;
///         Ok(())
///     })
///     .await?;
///     let is_accepted: bool = saga.request("accept", outbox::NewMessage::new("offers")).await?;
///     if is_accepted { Ok(()) } else { Err(Stop::because("not accepted")) }
/// }
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), testkit::Failure> {
/// testkit::sagas::everywhere(transfer, 30)
///     .setup("CREATE TABLE account (name TEXT, cents INTEGER); INSERT INTO account VALUES ('alice', 100)")
///     .reply("accept", &false)
///     .check(async |pool| {
///         let left: i64 = sqlx::query_scalar("SELECT cents FROM account").fetch_one(&pool).await.unwrap();
///         if left == 100 { Ok(()) } else { Err(format!("{left} cents are left")) }
///     })
///     .await?;
/// # Ok(()) }
/// ```
///
/// Calls to other services are repeated after a crash, so give the saga doubles that honour keys.
/// Timers are due at once.
pub fn everywhere<F, I, O>(function: F, input: I) -> Everywhere
where
    F: for<'r> SagaFunction<'r, Sqlite, I, O> + Clone + Send + Sync + 'static,
    I: Serialize + DeserializeOwned + Send + 'static,
    O: Serialize + 'static,
{
    Everywhere::of(home::sqlite(), function, input)
}

/// Does the same as [`everywhere`] on PostgreSQL: each run has its own schema in the database of
/// this URL. See [`postgres`](crate::postgres).
///
/// ```no_run
/// use saga::{Run, Stop};
///
/// async fn transfer(saga: &mut Run, cents: i64) -> Result<(), Stop> {
///     saga.step("take", async |tx| {
///         let take = "UPDATE account SET cents = cents - $1 WHERE owner = ANY(ARRAY['alice'])";
///         sqlx::query(take).bind(cents).execute(&mut **tx).await?;
///         Ok(())
///     })
///     .await
/// }
///
/// # async fn test() -> Result<(), testkit::Failure> {
/// testkit::sagas::everywhere_on(testkit::postgres::url()?, transfer, 30)
///     .setup("CREATE TABLE account (owner text, cents bigint); INSERT INTO account VALUES ('alice', 100)")
///     .await?;
/// # Ok(()) }
/// ```
#[cfg(feature = "postgres")]
pub fn everywhere_on<F, I, O>(url: impl Into<String>, function: F, input: I) -> Everywhere<sqlx::Postgres>
where
    F: for<'r> SagaFunction<'r, sqlx::Postgres, I, O> + Clone + Send + Sync + 'static,
    I: Serialize + DeserializeOwned + Send + 'static,
    O: Serialize + 'static,
{
    Everywhere::of(crate::postgres::home(url.into()), function, input)
}

/// A saga to be run with every fault. Use `.await` on it.
#[must_use = "nothing runs until it is awaited"]
pub struct Everywhere<DB: Database = Sqlite> {
    open: Open<DB>,
    register: Register<DB>,
    input: Result<serde_json::Value, String>,
    setup: Vec<&'static str>,
    replies: BTreeMap<String, serde_json::Value>,
    check: Option<Check<DB>>,
}

impl<DB: Database> Everywhere<DB> {
    fn of<F, I, O>(open: Open<DB>, function: F, input: I) -> Self
    where
        F: for<'r> SagaFunction<'r, DB, I, O> + Clone + Send + Sync + 'static,
        I: Serialize + DeserializeOwned + Send + 'static,
        O: Serialize + 'static,
    {
        let register: Register<DB> = Arc::new(move |builder| builder.saga("saga", 1, function.clone()));
        let input = serde_json::to_value(&input).map_err(|error| error.to_string());
        Self { open, register, input, setup: Vec::new(), replies: BTreeMap::new(), check: None }
    }

    /// Runs this SQL before each start, to create the tables of the service.
    pub fn setup(mut self, sql: &'static str) -> Self {
        self.setup.push(sql);
        self
    }

    /// Answers the request with this name once it is sent. Some faults answer earlier, twice, or
    /// after the end.
    pub fn reply(mut self, step: impl Into<String>, reply: &impl Serialize) -> Self {
        match serde_json::to_value(reply) {
            Ok(reply) => drop(self.replies.insert(step.into(), reply)),
            Err(error) => self.input = Err(error.to_string()),
        }
        self
    }

    /// Checks the service's own tables after each end, for example that the money adds up.
    pub fn check<C, Fut>(mut self, check: C) -> Self
    where
        C: Fn(Pool<DB>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), String>> + Send + 'static,
    {
        self.check = Some(Arc::new(move |pool| Box::pin(check(pool))));
        self
    }

    async fn run(self) -> Result<usize, Failure> {
        let input =
            self.input.map_err(|error| Failure::new(format!("input or reply is not JSON: {error}")))?;
        let course = Course {
            open: self.open,
            register: self.register,
            input,
            setup: self.setup,
            replies: self.replies,
            check: self.check,
        };
        let (expected, _) = course.run(Fault::None).await?;
        let mut met = 0;
        for fault in Fault::all(!course.replies.is_empty()) {
            met += one(&course, fault, &expected).await?;
        }
        Ok(met)
    }
}

/// Runs one fault. For a crash point, runs it once for each pass until the fault does not occur.
/// Returns the number of faults that occurred.
async fn one<DB: Database>(course: &Course<DB>, fault: Fault, expected: &End) -> Result<usize, Failure> {
    let mut met = 0;
    for pass in 1..=PASSES {
        let fault = fault.at_pass(pass);
        let (end, is_met) = course.run(fault).await?;
        compare(expected, &end).map_err(|difference| Failure::new(format!("{fault}: {difference}")))?;
        met += usize::from(is_met);
        if !is_met || !fault.has_passes() {
            break;
        }
    }
    Ok(met)
}

impl<DB: Database> IntoFuture for Everywhere<DB> {
    type Output = Result<usize, Failure>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    /// Runs the saga with every fault and returns the number of faults that occurred.
    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}

impl<DB: Database> std::fmt::Debug for Everywhere<DB> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Everywhere").field("replies", &self.replies).finish_non_exhaustive()
    }
}
