//! Logins to SQS with a token of Kubernetes or another issuer (AWS web identity), against a server
//! of the test's own that answers for STS and SQS: neither service is available here.

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::HeaderMap;
use tests::relay_process::Config;
use tests::{Database, Outcome, RelayProcess, Stage};
use tokio::net::TcpListener;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

tests::cases! { "web_identity/sqs/{case}":
    anywhere { a_token_file_becomes_a_temporary_key = logs_in }
}

/// The temporary key that STS returns for the token.
const KEY: &str = "ASIAWEBIDENTITY";
const SESSION: &str = "session-of-the-role";

/// Goal: a relay whose environment names a role and a token file, as Kubernetes sets them for a
/// service account, logs in to SQS as that role. Oracle: the requests that STS and SQS receive.
async fn logs_in(stage: Stage) -> Outcome {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = format!("http://{}", listener.local_addr()?);
    let (requests, mut received) = unbounded_channel();
    let server = tokio::spawn(
        axum::serve(listener, Router::new().fallback(answer).with_state(requests)).into_future(),
    );
    let token = stage.folder().join("token");
    std::fs::write(&token, "token-of-the-service-account")?;
    let database = Database::<sqlx::Sqlite>::migrated(&stage).await?.url;
    let config = Config::text(
        &stage,
        &format!(
            "[[pipeline]]\nname = \"orders\"\n[pipeline.database]\nurl = {database:?}\n\
             [pipeline.sqs]\nregion = \"eu-central-1\"\nendpoint_url = {address:?}\n"
        ),
    )?;
    let variables = [
        ("AWS_ENDPOINT_URL_STS", address.as_str()),
        ("AWS_ROLE_ARN", "arn:aws:iam::000000000007:role/relay"),
        ("AWS_WEB_IDENTITY_TOKEN_FILE", token.to_str().ok_or("the folder is no text")?),
    ];
    let relay = RelayProcess::start_with(&stage, &config, &variables)?;
    relay.tells("connected").await?;
    let (_, asked) = received.recv().await.ok_or("nobody asked STS")?;
    assert!(is_for_sts(&asked) && asked.contains("role%2Frelay"), "{asked}");
    assert!(asked.contains("token-of-the-service-account"), "{asked}");
    // The SDK may ask STS more than once.
    let headers = loop {
        let (headers, body) = received.recv().await.ok_or("nobody asked SQS")?;
        if !is_for_sts(&body) {
            break headers;
        }
    };
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    assert!(header("authorization").contains(KEY), "{headers:?}");
    assert_eq!(header("x-amz-security-token"), SESSION);
    let log = relay.log()?;
    assert!(!log.contains(SESSION) && !log.contains("token-of-the-service-account"), "{log}");
    relay.stop().await?;
    server.abort();
    Ok(())
}

/// Answers for STS, which is asked by a form, and for SQS, which is asked in JSON.
async fn answer(
    State(requests): State<UnboundedSender<(HeaderMap, String)>>,
    headers: HeaderMap,
    body: Bytes,
) -> String {
    let body = String::from_utf8_lossy(&body).into_owned();
    let is_for_sts = is_for_sts(&body);
    // The test may have ended.
    let _ = requests.send((headers, body));
    if !is_for_sts {
        return String::from(r#"{"QueueUrl":"http://127.0.0.1/000000000007/orders"}"#);
    }
    let namespace = "https://sts.amazonaws.com/doc/2011-06-15/";
    format!(
        "<AssumeRoleWithWebIdentityResponse xmlns=\"{namespace}\">\
         <AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>{KEY}</AccessKeyId>\
         <SecretAccessKey>secret</SecretAccessKey>\
         <SessionToken>{SESSION}</SessionToken><Expiration>2100-01-01T00:00:00Z</Expiration>\
         </Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"
    )
}

fn is_for_sts(body: &str) -> bool {
    body.contains("AssumeRoleWithWebIdentity")
}
