//! Runs statements with the plans that the server made, and counts the rows and buffers that they
//! touch.

use outbox_log::postgres::inventory::{self, Listed};
use serde_json::Value;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, Postgres, Row as _};

use super::cases::{Case, Fixture, Session, cases};
use crate::outbox::support::Database;

/// Maximum rows and buffers for each row that a statement concerns. The highest measured value is
/// 35, for a statement that looks an id up in all eight segments twice.
const EACH: i64 = 40;
/// Maximum rows and buffers for each row that a statement may read once.
const PASSED: i64 = 3;
/// Maximum rows and buffers of any statement: a lookup in each segment, its catalog, and the
/// sequence.
const ALWAYS: i64 = 80;

/// The rows and buffers that a statement has touched.
#[derive(Debug)]
struct Touched {
    rows: i64,
    buffers: i64,
}

impl Touched {
    /// Sums up the nodes of a plan. A node inside WITH that changes rows is counted separately,
    /// because it may run after the statement's own nodes.
    fn of(plan: &Value) -> Self {
        fn buffers(node: &Value) -> i64 {
            let blocks = |name| node[name].as_i64().unwrap_or_default();
            blocks("Shared Hit Blocks") + blocks("Shared Read Blocks")
        }
        fn add(node: &Value, touched: &mut Touched) {
            let number = |name| node[name].as_f64().unwrap_or_default();
            let each = [
                "Actual Rows",
                "Rows Removed by Filter",
                "Rows Removed by Join Filter",
                "Rows Removed by Index Recheck",
            ]
            .map(number)
            .iter()
            .sum::<f64>();
            touched.rows += (each * number("Actual Loops")) as i64;
            if node["Node Type"] == "ModifyTable" && node["Parent Relationship"] == "InitPlan" {
                touched.buffers += buffers(node);
            }
            for inner in node["Plans"].as_array().into_iter().flatten() {
                add(inner, touched);
            }
        }
        let mut touched = Self { rows: 0, buffers: buffers(plan) };
        add(plan, &mut touched);
        touched
    }
}

/// Sessions in which every statement is prepared: with the relay's settings and with the server's,
/// with generic and with custom plans.
pub(super) struct Sessions {
    open: Vec<Open>,
}

struct Open {
    connection: PgConnection,
    session: Session,
    plans: &'static str,
}

impl Sessions {
    pub(super) async fn open(db: &Database<Postgres>, listed: &[Listed]) -> Self {
        let mut open = Vec::new();
        for session in [Session::Relay, Session::Plain] {
            for plans in ["generic", "custom"] {
                let mut connection = PgConnection::connect(&db.url).await.unwrap();
                let planner = match session {
                    Session::Relay => inventory::ONE_PLAN.replace("SET LOCAL", "SET"),
                    Session::Plain => String::new(),
                };
                run(&mut connection, format!("SET plan_cache_mode = force_{plans}_plan; {planner}")).await;
                for Listed { name, sql } in listed.iter().filter(|listed| !listed.sql.starts_with("LOCK")) {
                    run(&mut connection, format!("PREPARE \"{name}\" AS {sql}")).await;
                }
                open.push(Open { connection, session, plans });
            }
        }
        Self { open }
    }

    /// Runs each case in its sessions, and adds a line to `found` for each that touches too much.
    /// `dead` deleted rows may be in its way until no transaction on the server is older than their
    /// deletion.
    pub(super) async fn measure(
        &mut self,
        state: &str,
        dead: i64,
        fixture: &Fixture,
        found: &mut Vec<String>,
    ) {
        for case in cases(fixture) {
            for open in self.open.iter_mut().filter(|open| open.session == case.session) {
                // The first run of a session also fills its caches, and the first run after a
                // deletion marks the dead rows in the indexes.
                open.touched(&case).await;
                let touched = open.touched(&case).await;
                let most = EACH * case.rows + PASSED * (case.passed + dead) + ALWAYS;
                if touched.rows > most || touched.buffers > most {
                    let Case { statement, about, .. } = case;
                    let plans = open.plans;
                    found.push(format!("{state}, {plans}: {statement} {about}: {touched:?}, at most {most}"));
                }
            }
        }
    }
}

impl Open {
    async fn touched(&mut self, case: &Case) -> Touched {
        let arguments = match case.arguments.as_str() {
            "" => String::new(),
            arguments => format!("({arguments})"),
        };
        run(&mut self.connection, String::from("BEGIN")).await;
        let explain = format!(
            "EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) EXECUTE \"{}\"{arguments}",
            case.statement
        );
        let row = sqlx::raw_sql(AssertSqlSafe(explain)).fetch_one(&mut self.connection).await;
        let row = row.unwrap_or_else(|error| panic!("{} {}: {error}", case.statement, case.about));
        let plan: Value = serde_json::from_str(&row.try_get_unchecked::<String, _>(0).unwrap()).unwrap();
        run(&mut self.connection, String::from("ROLLBACK")).await;
        Touched::of(&plan[0]["Plan"])
    }
}

async fn run(connection: &mut PgConnection, sql: String) {
    let done = sqlx::raw_sql(AssertSqlSafe(sql.clone())).execute(connection).await;
    done.unwrap_or_else(|error| panic!("{sql}: {error}"));
}
