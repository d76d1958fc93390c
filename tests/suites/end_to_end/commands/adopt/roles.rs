//! Roles without a login that insert rows.

use migrations::{Line, Migrator};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection, Postgres};
use tests::relay_process::Config;
use tests::{Database, Failure, Outcome, Stage};

use super::{RELAY, adopt, adopted};

const BROKER: &str = "[pipeline.kafka]\nbootstrap_servers = [\"127.0.0.1:1\"]\n";

/// The roles of the test, which belong to the whole server.
struct Roles {
    /// A login that inherits no right and becomes `tenant`.
    login: String,
    /// A role that may insert.
    tenant: String,
    /// The owner of a function that inserts.
    definer: String,
    /// A role that may insert but that nothing uses.
    unused: String,
}

impl Roles {
    /// Creates the roles, the old table `old`, and the function `enter()`.
    async fn create(stage: &Stage, database: &Database<Postgres>) -> Result<Self, Failure> {
        let [login, tenant, definer, unused] =
            ["login", "tenant", "definer", "unused"].map(|name| stage.unique(name));
        database
            .execute(&format!(
                "CREATE TABLE old (id bigserial PRIMARY KEY, body json);
                 CREATE ROLE {tenant}; CREATE ROLE {definer}; CREATE ROLE {unused};
                 CREATE ROLE {login} LOGIN NOINHERIT PASSWORD 'login' IN ROLE {tenant};
                 GRANT INSERT ON old TO {tenant}, {definer}, {unused};
                 GRANT USAGE ON SEQUENCE old_id_seq TO {tenant}, {definer};
                 GRANT USAGE ON SCHEMA public TO {tenant}, {definer}, {unused};
                 CREATE FUNCTION enter() RETURNS void LANGUAGE sql SECURITY DEFINER
                     AS 'INSERT INTO old (body) VALUES (''2'')';
                 GRANT EXECUTE ON FUNCTION enter() TO {tenant};
                 GRANT CREATE ON SCHEMA public TO {definer};
                 ALTER FUNCTION enter() OWNER TO {definer};
                 REVOKE CREATE ON SCHEMA public FROM {definer}"
            ))
            .await?;
        let (of, roles) = (database.clone(), [&*login, &tenant, &definer, &unused].join(", "));
        stage.afterwards("roles", async move {
            of.execute(&format!("DROP OWNED BY {roles}; DROP ROLE {roles}")).await
        });
        Ok(Self { login, tenant, definer, unused })
    }

    /// Connects as the login.
    async fn connect(&self, database: &Database<Postgres>) -> Result<PgConnection, Failure> {
        let (_, place) = database.url.rsplit_once('@').ok_or("a URL without a user")?;
        Ok(PgConnection::connect(&format!("postgres://{}:login@{place}", self.login)).await?)
    }
}

/// Goal: a role without a login that inserts, by `SET ROLE` or by a function that it owns, must
/// have the rights of a producer before the table is adopted. Oracle: the error names only these
/// roles and their grants; with the grants, inserts succeed.
pub(super) async fn inserted_as(stage: Stage) -> Outcome {
    inserted(&stage, Database::<Postgres>::migrated(&stage).await?).await
}

/// Goal: the same in a database whose default privileges let `PUBLIC` execute no function.
pub(super) async fn hardened(stage: Stage) -> Outcome {
    let database = Database::<Postgres>::empty(&stage).await?;
    database.execute("ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC").await?;
    let migrator = Migrator::<Postgres>::new(Line::Outbox);
    migrator.up(&mut *database.admin.acquire().await?).await?;
    inserted(&stage, database).await
}

async fn inserted(stage: &Stage, database: Database<Postgres>) -> Outcome {
    let roles = Roles::create(stage, &database).await?;
    let section = "[pipeline.adopt]\ntable = \"old\"\ntopic = \"t\"\n\
                   columns = { key = \"\", kind = \"\", payload = \"body\" }\n";
    let config = Config::with_section(stage, RELAY, &database.url, BROKER, section)?;
    let url = &database.url;
    let ran = adopt(&config, url, "over", &[]).await?;
    assert!(!ran.err.contains(&roles.unused) && !ran.err.contains(&roles.login), "{ran:?}");
    ran.refused(2, &["may not append messages", &roles.tenant, &roles.definer, "GRANT"])?;
    let status = adopted(&config, url, "status", 2).await?;
    for role in [&roles.tenant, &roles.definer] {
        let lacking = status["lacking"].as_array().ok_or("no roles")?;
        let found = lacking.iter().find(|it| it["role"] == **role).ok_or("the role is missing")?;
        database.execute(found["remedy"].as_str().ok_or("no remedy")?).await?;
    }
    assert_eq!(adopted(&config, url, "over", 0).await?["outcome"], "adopted");
    let mut login = roles.connect(&database).await?;
    login.execute(AssertSqlSafe(format!("SET ROLE {}", roles.tenant))).await?;
    login.execute("SELECT enter()").await?;
    login.execute("INSERT INTO old (body) VALUES ('1')").await?;
    login.close().await?;
    adopt(&config, url, "status", &[]).await?.done()?;
    let messages = "SELECT convert_from(payload, 'UTF8') FROM outbox_message ORDER BY id";
    assert_eq!(database.texts(messages).await?, ["2", "1"]);
    Ok(())
}
