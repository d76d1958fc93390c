//! The schemas of worlds on PostgreSQL, and the order of messages of concurrent transactions.

use checker::Promise;
use outbox::NewMessage;
use sqlx::Postgres;
use testkit::World;
use testkit::postgres::remove_leftovers;
use tests::{Database, Dialect as _, Outcome, Role, Stage};

use super::page;

tests::cases! { "kit/{on}/{case}":
    postgres {
        the_page_about_tests_is_right,
        a_schema_is_removed_with_its_world,
        a_schema_is_removed_although_its_tables_are_in_use,
        a_schema_is_removed_after_a_panic,
        a_schema_is_removed_by_a_test_with_one_thread,
        leftovers_are_removed_and_running_worlds_stay,
        a_role_needs_only_the_right_to_create_schemas,
        the_tables_of_a_service_are_not_touched,
        schemas_in_the_search_path_of_the_url_follow,
        a_server_that_does_not_answer_is_named,
        worlds_of_many_tests_are_built_at_once,
        messages_of_concurrent_transactions_have_no_order,
        messages_of_successive_transactions_have_an_order,
    }
    night postgres { the_page_about_sagas_is_right }
}

/// The worlds of a database, and similar schemas.
async fn schemas(database: &Database<Postgres>) -> Result<Vec<String>, tests::Failure> {
    database.texts("SELECT nspname::text FROM pg_namespace WHERE nspname LIKE 'testkit%' ORDER BY 1").await
}

async fn the_page_about_tests_is_right(_: Stage) -> Outcome {
    page::a_payment_is_credited_once().await
}

async fn the_page_about_sagas_is_right(_: Stage) -> Outcome {
    page::a_saga_ends_like_the_undisturbed_one().await
}

async fn a_schema_is_removed_with_its_world(stage: Stage) -> Outcome {
    let database = Database::<Postgres>::empty(&stage).await?;
    let (one, two) = (World::postgres(&database.url).await?, World::postgres(&database.url).await?);
    one.execute("CREATE TABLE account (id bigint)").await?;
    two.execute("CREATE TABLE account (id bigint)").await?;
    assert_eq!(schemas(&database).await?.len(), 2);
    drop(one);
    assert_eq!(schemas(&database).await?.len(), 1);
    assert_eq!(two.number("SELECT count(*) FROM account").await?, 0);
    drop(two);
    assert!(schemas(&database).await?.is_empty());
    Ok(())
}

/// Goal: a transaction that a test leaves open does not keep a schema. Oracle: the schema is
/// removed, although the transaction has locked a table; the transaction failed.
async fn a_schema_is_removed_although_its_tables_are_in_use(stage: Stage) -> Outcome {
    let database = Database::<Postgres>::empty(&stage).await?;
    let world = World::postgres(&database.url).await?;
    world.execute("CREATE TABLE account (id bigint)").await?;
    let mut tx = world.pool().begin().await?;
    sqlx::query("INSERT INTO account VALUES (7)").execute(&mut *tx).await?;
    drop(world);
    assert!(schemas(&database).await?.is_empty());
    assert!(tx.commit().await.is_err());
    Ok(())
}

async fn a_schema_is_removed_after_a_panic(stage: Stage) -> Outcome {
    let database = Database::<Postgres>::empty(&stage).await?;
    let url = database.url.clone();
    let test = tokio::spawn(async move {
        let world = World::postgres(url).await.unwrap();
        world.enqueue([NewMessage::new("orders")]).await.unwrap();
        panic!("the test fails");
    });
    assert!(test.await.unwrap_err().is_panic());
    assert!(schemas(&database).await?.is_empty());
    Ok(())
}

/// Goal: the removal needs no other task of the runtime, as in a plain `#[tokio::test]`. Oracle:
/// the schema no longer exists when the test ends in the middle of its work.
async fn a_schema_is_removed_by_a_test_with_one_thread(stage: Stage) -> Outcome {
    let database = Database::<Postgres>::empty(&stage).await?;
    let url = database.url.clone();
    let test = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let world = World::postgres(url).await?;
            world.enqueue((0..50).map(|_| NewMessage::new("orders").key("order-7"))).await?;
            world.broker().stored(&message::Topic::new("orders")?, 5).await;
            Ok::<_, tests::Failure>(())
        })
    });
    test.await??;
    assert!(schemas(&database).await?.is_empty());
    Ok(())
}

/// Goal: a killed process leaves nothing forever, and no process disturbs another one. Oracle:
/// exactly the schemas that no session has locked are removed; foreign ones stay.
async fn leftovers_are_removed_and_running_worlds_stay(stage: Stage) -> Outcome {
    let database = Database::<Postgres>::empty(&stage).await?;
    // The first world in a database removes what is left there, whatever this process did
    // elsewhere.
    drop(World::postgres(Database::<Postgres>::empty(&stage).await?.url).await?);
    database.execute("CREATE SCHEMA testkit_20260305040708_0123456789abcdee").await?;
    let world = World::postgres(&database.url).await?;
    assert_eq!(schemas(&database).await?.len(), 1, "the world alone");
    let left = "testkit_20260305040709_0123456789abcdef";
    database.execute(&format!("CREATE SCHEMA {left}; CREATE TABLE {left}.account (id bigint)")).await?;
    database.execute("CREATE SCHEMA testkit_of_the_service").await?;
    assert_eq!(remove_leftovers(&database.url).await?, [left]);
    let names = schemas(&database).await?;
    assert_eq!(names.len(), 2, "{names:?}");
    assert_eq!(names[1], "testkit_of_the_service");
    world.enqueue([NewMessage::new("orders")]).await?;
    world.assert_promises_kept().await;
    Ok(())
}

async fn a_role_needs_only_the_right_to_create_schemas(stage: Stage) -> Outcome {
    let database = Database::<Postgres>::empty(&stage).await?;
    let (url, role) = (Postgres::url_of(Role::Producer, &database.url)?, Role::Producer.user());
    let refused = World::postgres(&url).await.unwrap_err().to_string();
    let grant = format!("GRANT CREATE ON DATABASE {} TO {role}", database.name()?);
    assert!(refused.contains(&grant), "{refused}");
    database.execute(&grant).await?;
    let world = World::postgres(&url).await?;
    world.enqueue([NewMessage::new("orders").key("order-7")]).await?;
    world.assert_promises_kept().await;
    world.crash_relay()?;
    world.advance(std::time::Duration::from_secs(86_400)).await?;
    world.enqueue([NewMessage::new("orders").key("order-7")]).await?;
    world.assert_promises_kept().await;
    drop(world);
    assert!(schemas(&database).await?.is_empty());
    Ok(())
}

/// Goal: a test in the database of a service does not read or write the service's tables. Oracle:
/// the message of the test is not in the service's outbox, and the service's table is not found.
async fn the_tables_of_a_service_are_not_touched(stage: Stage) -> Outcome {
    let database = Database::<Postgres>::migrated(&stage).await?;
    database.execute("CREATE TABLE account (id bigint)").await?;
    let world = World::postgres(&database.url).await?;
    world.enqueue([NewMessage::new("orders")]).await?;
    world.assert_promises_kept().await;
    assert_eq!(database.integer("SELECT count(*) FROM public.outbox_message").await?, 0);
    assert!(world.number("SELECT count(*) FROM account").await.is_err());
    let named = format!("{}?options[search_path]=public", database.url);
    let refused = World::postgres(named).await.unwrap_err().to_string();
    assert!(refused.contains("in the schema public"), "{refused}");
    Ok(())
}

async fn schemas_in_the_search_path_of_the_url_follow(stage: Stage) -> Outcome {
    let database = Database::<Postgres>::empty(&stage).await?;
    database
        .execute(
            "CREATE SCHEMA extensions; CREATE TABLE extensions.account (id bigint);
             CREATE FUNCTION extensions.seven() RETURNS integer LANGUAGE sql AS 'SELECT 7'",
        )
        .await?;
    let world = World::postgres(format!("{}?options[search_path]=extensions", database.url)).await?;
    assert_eq!(world.number("SELECT seven()").await?, 7);
    world.execute("CREATE TABLE account (id bigint); INSERT INTO account VALUES (seven())").await?;
    assert_eq!(world.number("SELECT id FROM account").await?, 7);
    assert_eq!(database.integer("SELECT count(*) FROM extensions.account").await?, 0);
    Ok(())
}

async fn a_server_that_does_not_answer_is_named(_: Stage) -> Outcome {
    let refused = World::postgres("postgres://ann:secret@127.0.0.1:1/orders").await.unwrap_err();
    let text = format!("{refused:?}");
    assert!(text.contains("127.0.0.1:1/orders") && text.contains("start the server"), "{text}");
    assert!(!text.contains("secret"), "{text}");
    let refused = World::postgres("mysql://localhost/orders").await.unwrap_err();
    assert!(format!("{refused:?}").contains("postgres://"), "{refused:?}");
    Ok(())
}

async fn worlds_of_many_tests_are_built_at_once(stage: Stage) -> Outcome {
    const WORLDS: usize = 6;
    let database = Database::<Postgres>::empty(&stage).await?;
    let mut tests = tokio::task::JoinSet::new();
    for _ in 0..WORLDS {
        let url = database.url.clone();
        tests.spawn(async move {
            let world = World::postgres(url).await?;
            world.enqueue([NewMessage::new("orders").key("order-7")]).await?;
            world.advance(std::time::Duration::from_secs(2 * 86_400)).await?;
            world.quiet().await?;
            world.number("SELECT count(*) FROM outbox_message").await
        });
    }
    while let Some(count) = tests.join_next().await {
        assert_eq!(count??, 1);
    }
    assert!(schemas(&database).await?.is_empty());
    Ok(())
}

/// Goal: the checker requires only the promised order. Oracle: the message with the smaller id is
/// committed and published last, and no promise is broken.
async fn messages_of_concurrent_transactions_have_no_order(_: Stage) -> Outcome {
    let world = World::postgres(testkit::postgres::url()?).await?;
    let message = || NewMessage::new("orders").key("order-7");
    let mut late = world.outbox().begin(world.pool()).await?;
    late.enqueue(message()).await?;
    world.enqueue([message()]).await?;
    world.quiet().await?;
    late.commit().await?;
    world.enqueue([message()]).await?;
    world.assert_promises_kept().await;
    let ordered = world.history().await?.outbox.unwrap();
    assert_eq!(ordered.iter().map(|row| row.seq).collect::<Vec<_>>(), [None, None, Some(1)]);
    Ok(())
}

async fn messages_of_successive_transactions_have_an_order(_: Stage) -> Outcome {
    let world = World::postgres(testkit::postgres::url()?).await?;
    let message = || NewMessage::new("orders").key("order-7");
    world.enqueue([message(), message()]).await?;
    // A transaction of another key runs at the same time.
    let mut other = world.outbox().begin(world.pool()).await?;
    other.enqueue(NewMessage::new("orders").key("order-8")).await?;
    world.enqueue([message()]).await?;
    other.commit().await?;
    world.assert_promises_kept().await;
    let rows = world.history().await?.outbox.unwrap();
    assert_eq!(rows.iter().filter_map(|row| row.seq).collect::<Vec<_>>(), [1, 2, 1, 3]);
    let verdict = world.verdict().await?;
    let order = verdict.ruling(Promise::CausalOrder);
    assert!(order.not_checked.is_none() && order.checked == 4, "{verdict}");
    Ok(())
}
