//! The one form in which the suites list their cases: [`cases!`](crate::cases!).

use std::future::Future;
use std::sync::Arc;

use libtest_mimic::Trial;

use crate::backends::Backend;
use crate::brokers::{self, Broker};
use crate::stage::Stage;
use crate::trial::{Outcome, cannot_run, trial};

/// Lists the cases of a module, and the modules below it. Makes of them the module's function
/// `trials()`. A case that no list names, or a module that no other lists, is code without a use,
/// which the suites refuse to compile.
///
/// ```text
/// tests::cases! { "outbox/log/{on}/{case}":
///     every { rows_of_plain_sql_are_read, a_rollback_leaves_nothing }
///     on_postgres { a_late_commit_is_read }
///     night postgres kafka + xtask { a_crash_loses_nothing = crashes::loses_nothing }
///     modules { searches, tails }
/// }
/// ```
///
/// The text before the colon is the pattern of the names: `{on}` stands for the components that the
/// case runs on, and `{case}` for its name in the list. A case is the function of this name, or the
/// expression after its `=`; with an `=`, its name may be a literal. It takes nothing, a [`Stage`],
/// or a [`Stage`] and the first [`Broker`] that its section names.
///
/// | section | its cases run |
/// |---|---|
/// | `every` | on both databases: `super::each::<DB>(stage, case)` prepares one, and runs the case |
/// | `on_postgres`, `on_sqlite` | the same, on one of them |
/// | `databases` | on both databases, generic over them |
/// | `pairs` | on PostgreSQL with Kafka, and on SQLite with librdkafka's mock cluster; generic |
/// | `everywhere` | on PostgreSQL with every broker, and on SQLite as above; generic |
/// | `every_broker` | on PostgreSQL with every broker |
/// | words of [`words`](crate::backends::words), such as `postgres kafka` | there |
/// | `anywhere` | without a component |
/// | `night` before any of these | the same, at night |
/// | `+ xtask …` after any of these | the same, where this run has these components, too |
/// | `, if can` after any of these | the same, unless `fn can() -> Result<(), String>` has a reason |
/// | `modules`, `night modules` | as the modules say |
/// | `also` | as these expressions say: lists of trials that are computed |
#[macro_export]
macro_rules! cases {
    (@ $name:literal [night $($word:ident)+] $needs:tt $($list:tt)*) => {
        $crate::trial::at_night($crate::cases!(@ $name [$($word)+] $needs $($list)*))
    };
    (@ $name:literal [also] [] $($more:expr),* $(,)?) => {{
        let mut trials = Vec::new();
        $(trials.extend($more);)*
        trials
    }};
    (@ $name:literal [modules] [] $($module:ident),* $(,)?) => {
        $crate::cases!(@ $name [also] [] $($module::trials()),*)
    };
    (@ $name:literal [every] $needs:tt $($list:tt)*) => {
        $crate::cases!(@ $name [also] []
            $crate::cases!(@ $name [on_postgres] $needs $($list)*),
            $crate::cases!(@ $name [on_sqlite] $needs $($list)*))
    };
    (@ $name:literal [on_postgres] $needs:tt $($case:ident),* $(,)?) => {
        $crate::cases!(@ $name [postgres] $needs
            $($case = |stage: $crate::Stage| super::each::<sqlx::Postgres>(stage, $case)),*)
    };
    (@ $name:literal [on_sqlite] $needs:tt $($case:ident),* $(,)?) => {
        $crate::cases!(@ $name [sqlite] $needs
            $($case = |stage: $crate::Stage| super::each::<sqlx::Sqlite>(stage, $case)),*)
    };
    (@ $name:literal [databases] $needs:tt $($case:ident),* $(,)?) => {
        $crate::cases!(@ $name [also] []
            $crate::cases!(@ $name [postgres] $needs $($case = $case::<sqlx::Postgres>),*),
            $crate::cases!(@ $name [sqlite] $needs $($case = $case::<sqlx::Sqlite>),*))
    };
    (@ $name:literal [pairs] $needs:tt $($case:ident),* $(,)?) => {
        $crate::cases!(@ $name [also] []
            $crate::cases!(@ $name [postgres kafka] $needs $($case = $case::<sqlx::Postgres>),*),
            $crate::cases!(@ $name [sqlite kafka_mock] $needs $($case = $case::<sqlx::Sqlite>),*))
    };
    (@ $name:literal [everywhere] $needs:tt $($case:ident),* $(,)?) => {
        $crate::cases!(@ $name [also] []
            $crate::cases!(@ $name [every_broker] $needs $($case = $case::<sqlx::Postgres>),*),
            $crate::cases!(@ $name [sqlite kafka_mock] $needs $($case = $case::<sqlx::Sqlite>),*))
    };
    (@ $name:literal [every_broker] $needs:tt $($list:tt)*) => {
        $crate::cases!(@ $name [also] []
            $crate::cases!(@ $name [postgres kafka] $needs $($list)*),
            $crate::cases!(@ $name [postgres rabbitmq] $needs $($list)*),
            $crate::cases!(@ $name [postgres sqs_fifo] $needs $($list)*),
            $crate::cases!(@ $name [postgres sqs] $needs $($list)*))
    };
    (@ $name:literal [anywhere] $needs:tt $($list:tt)*) => {
        $crate::cases!(@ $name [] $needs $($list)*)
    };
    (@ $name:literal [$($on:ident)*] [$($need:ident)* $(; $can:path)?]
        $($case:tt $(= $body:expr)?),* $(,)?) => {{
        let place = $crate::cases::Place::new(
            $name,
            &[$($crate::backends::words::$on),*],
            &[$($crate::backends::words::$need),*],
        )$(.if_it($can()))?;
        vec![$(place.case(stringify!($case), $crate::cases!(@body $case $($body)?))),*]
    }};
    (@body $case:tt $body:expr) => { $body };
    (@body $case:ident) => { $case };
    ($name:literal: $(
        $($word:ident)+ $(+ $($need:ident)+)? $(, if $can:path)? { $($list:tt)* }
    )*) => {
        pub(crate) fn trials() -> Vec<libtest_mimic::Trial> {
            $crate::cases!(@ $name [also] []
                $($crate::cases!(@ $name [$($word)+] [$($($need)+)? $(; $can)?] $($list)*)),*)
        }
    };
    ($word:ident $($rest:tt)*) => {
        $crate::cases! { "": $word $($rest)* }
    };
}

/// Where the cases of a section run, and the pattern of their names.
#[derive(Debug)]
pub struct Place {
    name: &'static str,
    on: Vec<Backend>,
    needs: Vec<Backend>,
    /// The reason why its cases cannot run on this machine.
    lacking: Option<String>,
}

impl Place {
    /// Creates a place of these components; `more` are needed without being in the names.
    #[must_use]
    pub fn new(name: &'static str, on: &[Backend], more: &[Backend]) -> Self {
        Self { name, on: on.to_vec(), needs: [on, more].concat(), lacking: None }
    }

    /// Returns the same place; its cases do not run if there is an error, which says why.
    #[must_use]
    pub fn if_it(self, can: Result<(), String>) -> Self {
        Self { lacking: can.err(), ..self }
    }

    /// Makes a trial of a case, whose name is an identifier or a literal as it is written.
    pub fn case<A>(&self, case: &str, body: impl Case<A>) -> Trial {
        let name = self.name_of(case.trim_matches('"'));
        if let Some(reason) = &self.lacking {
            return cannot_run(name, reason);
        }
        let broker = self.needs.iter().copied().find(|backend| backend.is_broker());
        trial(name, &self.needs, move |stage| body.run(stage, broker))
    }

    fn name_of(&self, case: &str) -> String {
        let on: Vec<_> = self.on.iter().map(|backend| backend.as_str()).collect();
        let parts = self.name.split('/').flat_map(|part| match part {
            "{on}" => on.clone(),
            "{case}" => vec![case],
            part => vec![part],
        });
        parts.collect::<Vec<_>>().join("/")
    }
}

/// A function that can be a case. `A` are its arguments.
pub trait Case<A>: Send + 'static {
    /// Runs the case, on this broker if it takes one.
    fn run(self, stage: Stage, broker: Option<Backend>) -> impl Future<Output = Outcome>;
}

impl<C, F> Case<()> for C
where
    C: FnOnce() -> F + Send + 'static,
    F: Future<Output: Ending>,
{
    async fn run(self, _: Stage, _: Option<Backend>) -> Outcome {
        self().await.outcome()
    }
}

impl<C, F> Case<(Stage,)> for C
where
    C: FnOnce(Stage) -> F + Send + 'static,
    F: Future<Output: Ending>,
{
    async fn run(self, stage: Stage, _: Option<Backend>) -> Outcome {
        self(stage).await.outcome()
    }
}

impl<C, F> Case<(Stage, Arc<dyn Broker>)> for C
where
    C: FnOnce(Stage, Arc<dyn Broker>) -> F + Send + 'static,
    F: Future<Output: Ending>,
{
    async fn run(self, stage: Stage, broker: Option<Backend>) -> Outcome {
        let broker = broker.ok_or("this case takes a broker, and its section names none")?;
        let broker = brokers::open(&stage, broker).await?;
        self(stage, broker).await.outcome()
    }
}

/// The result of a case: nothing if it fails by panicking alone, or an [`Outcome`].
pub trait Ending {
    /// Returns whether it passed.
    ///
    /// # Errors
    /// It failed.
    fn outcome(self) -> Outcome;
}

impl Ending for () {
    fn outcome(self) -> Outcome {
        Ok(())
    }
}

impl Ending for Outcome {
    fn outcome(self) -> Outcome {
        self
    }
}

#[cfg(test)]
mod tests {
    use crate::{Outcome, Stage};

    #[expect(clippy::extra_unused_type_parameters, reason = "the macro names the database")]
    async fn each<DB>(_: Stage, case: impl AsyncFnOnce(&u8)) {
        case(&0).await;
    }

    mod below {
        crate::cases! { "below/{on}/{case}":
            night every { a_prepared_case }
            sqlite { a_plain_case }
        }

        async fn a_prepared_case(_: &u8) {}

        async fn a_plain_case() {}
    }

    crate::cases! { "{case}/{on}":
        databases { a_generic_case }
        sqlite kafka_mock { "of/another/name" = a_failing_case, a_failing_case }
        anywhere + memory { a_failing_case }
        anywhere, if one_can { a_case_of_a_tool = a_failing_case }
        modules { below }
        also { crate::trial::at_night(vec![crate::trial("computed", &[], a_failing_case)]) }
    }

    fn one_can() -> Result<(), String> {
        Err("it lacks a tool".into())
    }

    #[expect(clippy::extra_unused_type_parameters, reason = "the macro names the database")]
    async fn a_generic_case<DB: sqlx::Database>(_: Stage) -> Outcome {
        Ok(())
    }

    async fn a_failing_case(_: Stage) -> Outcome {
        Err("no".into())
    }

    #[test]
    fn names_say_where_a_case_runs() {
        let trials = trials();
        // On PostgreSQL, a name continues with the reason if this run has no server.
        let name = |trial: &libtest_mimic::Trial| {
            let name = trial.name().split(' ').next().unwrap().to_owned();
            if trial.kind().is_empty() { name } else { format!("{} {name}", trial.kind()) }
        };
        assert_eq!(
            trials.iter().map(name).collect::<Vec<_>>(),
            [
                "a_generic_case/postgres",
                "a_generic_case/sqlite",
                "of/another/name/sqlite/kafka-mock",
                "a_failing_case/sqlite/kafka-mock",
                "a_failing_case",
                "a_case_of_a_tool",
                "night below/postgres/a_prepared_case",
                "night below/sqlite/a_prepared_case",
                "below/sqlite/a_plain_case",
                "night computed",
            ]
        );
    }
}
