//! Unique keys do not depend on the collation of the database. An upgrade of the operating system
//! or of ICU can change a collation's order. An index that was built in the old order then finds no
//! duplicates.

use idempotency::{ClaimOptions, Claimed, Ending, IdempotencyKeys, KeyId, KeyOptions};
use message::Fingerprint;
use migrations::{Line, Migrator};
use sqlx::{Connection as _, PgConnection, Postgres};
use tests::{Database, Dialect as _, Failure, Outcome, Stage};

tests::cases! { "migrations/collations/{on}/{case}":
    postgres {
        every_unique_text_is_compared_by_its_bytes = by_bytes,
        no_key_is_granted_again_after_a_change_of_collation = granted_once,
    }
}

/// Every column of a unique index of the toolkit, partitions included, whose collation is not "C".
const OTHERS: &str = "
    SELECT format('%s: column %s is %s', x.relname, i.indkey[k], coalesce(c.collname, '?'))
    FROM pg_index AS i
        JOIN pg_class AS x ON x.oid = i.indexrelid
        CROSS JOIN generate_series(0, i.indnkeyatts - 1) AS k
        JOIN pg_collation AS c ON c.oid = i.indcollation[k]
    WHERE i.indisunique AND c.collname <> 'C'
        AND x.relname ~ '^(outbox|inbox|idempotency|saga)' AND x.relnamespace = 'public'::regnamespace
    ORDER BY 1";

/// Goal: all texts in unique indexes are ordered by their bytes, including the days of the inbox.
/// Oracle: the server's catalogue.
async fn by_bytes(stage: Stage) -> Outcome {
    let db = Database::<Postgres>::migrated(&stage).await?;
    db.execute("SELECT inbox_create_days(current_date, current_date + 2)").await?;
    let texts = "SELECT count(*) FROM pg_index AS i JOIN pg_class AS x ON x.oid = i.indexrelid
        CROSS JOIN generate_series(0, i.indnkeyatts - 1) AS k
        WHERE i.indisunique AND i.indcollation[k] <> 0 AND x.relnamespace = 'public'::regnamespace";
    assert!(db.integer(texts).await? > 30, "the search finds nothing");
    assert_eq!(db.texts(OTHERS).await?, [""; 0]);
    Ok(())
}

const KEYS: usize = 1_200;

/// Returns a realistic key. ICU and bytes order these keys differently.
fn name(number: usize) -> String {
    match number % 4 {
        0 => format!("order-{number}"),
        1 => format!("Order_{number}"),
        2 => format!("{:x}-\u{c4}-{number}", number * 7_919),
        _ => format!("ORDER {}", number * 31),
    }
}

/// Claims every key and completes it. Returns how many were granted.
async fn claim_all(db: &Database<Postgres>) -> Result<usize, Failure> {
    let pool = outbox::pool::<Postgres>(&db.url).await?;
    let keys = IdempotencyKeys::open(pool.clone(), KeyOptions::default()).await?;
    let mut granted = 0;
    for number in 0..KEYS {
        let id = KeyId::of_texts("tenant-1", "POST /charges", &name(number))?;
        let request = Fingerprint::of_parts("POST /charges", "", b"{}");
        if let Claimed::Acquired(tx) = keys.begin(&id, request, &ClaimOptions::default()).await? {
            tx.commit(Ending::Succeeded, b"charged").await?;
            granted += 1;
        }
    }
    pool.close().await;
    Ok(granted)
}

/// Goal: no key is granted twice after another version of the operating system or of ICU orders
/// texts differently. Oracle: the keys that are granted when the same requests come again. In
/// between, the test changes the collation of the database under its tables, as an upgrade does.
async fn granted_once(stage: Stage) -> Outcome {
    let icu = "TEMPLATE template0 ENCODING 'UTF8' LOCALE_PROVIDER icu ICU_LOCALE 'en' LOCALE 'C'";
    let db = Database::<Postgres>::empty_with(&stage, icu).await?;
    let mut connection = PgConnection::connect(&db.url).await?;
    for line in Line::ALL {
        Migrator::<Postgres>::new(line).up(&mut connection).await?;
    }
    assert_eq!(claim_all(&db).await?, KEYS);
    let name = db.name()?;
    let change = format!(
        "UPDATE pg_database SET datlocprovider = 'c', daticulocale = NULL, datcollate = 'C', datctype = 'C',
            datcollversion = NULL WHERE datname = '{name}'"
    );
    Postgres::execute(&mut connection, &change).await?;
    connection.close().await?;
    assert_eq!(claim_all(&db).await?, 0, "keys that were granted again");
    assert_eq!(db.integer("SELECT count(*) FROM idempotency_key").await?, i64::try_from(KEYS)?);
    Ok(())
}
