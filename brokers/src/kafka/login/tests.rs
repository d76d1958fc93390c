//! Renewals with the test's own answers, for a real client that is not connected.

use std::sync::Mutex;

use async_trait::async_trait;
use message::Fault;
use rdkafka::admin::AdminClient;
use rdkafka::client::DefaultClientContext;
use rdkafka::config::FromClientConfig as _;
use tokio::task::spawn_blocking;

use super::*;
use crate::kafka::config::Sasl;
use crate::oauth::{AGAIN_MAX, OAuth, TokenProvider};

/// Gives the answers that it was created with, and then none.
#[derive(Debug)]
struct Script(Mutex<Vec<Result<u64, TokenError>>>);

#[async_trait]
impl TokenProvider for Script {
    async fn token(&self) -> Result<Token, TokenError> {
        let next = { self.0.lock().unwrap().pop() };
        match next {
            Some(Ok(seconds)) => {
                Token::new(format!("s3cret-{seconds}"), SystemTime::now() + Duration::from_secs(seconds))
            }
            Some(Err(error)) => Err(error),
            None => std::future::pending().await,
        }
    }
}

fn config(mut answers: Vec<Result<u64, TokenError>>) -> Config {
    answers.reverse();
    let oauth = OAuth::provider(Arc::new(Script(Mutex::new(answers)))).timeout_ms(100);
    let sasl = Sasl::oauth(oauth).extension("logicalCluster", "lkc-1");
    Config::new(["127.0.0.1:1"]).sasl(sasl)
}

type Admin = AdminClient<DefaultClientContext>;

async fn logged_in(answers: Vec<Result<u64, TokenError>>) -> Result<(Login, Admin), TokenError> {
    let config = config(answers);
    spawn_blocking(move || {
        let client = Admin::from_config(&config.client().unwrap()).unwrap();
        let login = Login::of(&config, None)?;
        login.give(client.inner())?;
        Ok((login, client))
    })
    .await
    .unwrap()
}

/// Takes turns until the answer to a request has been handled.
async fn renewed(login: &mut Login, client: &Admin) -> Result<(), TokenError> {
    login.0.as_mut().unwrap().renewal.due_at = Instant::now();
    login.turn(client.inner())?;
    while login.0.as_ref().unwrap().asked.is_some() {
        login.turn(client.inner())?;
        tokio::task::yield_now().await;
    }
    Ok(())
}

fn token(login: &Login) -> String {
    login.0.as_ref().unwrap().token.value().expose_secret().to_owned()
}

#[tokio::test]
async fn a_token_is_replaced_when_it_is_time_and_not_before() {
    let (mut login, client) = logged_in(vec![Ok(3_600), Ok(7_200), Ok(9_000)]).await.unwrap();
    login.turn(client.inner()).unwrap();
    assert!(login.0.as_ref().unwrap().asked.is_none(), "it is not time");
    let clone = login.clone();
    renewed(&mut login, &client).await.unwrap();
    assert_eq!((token(&login).as_str(), token(&clone).as_str()), ("s3cret-7200", "s3cret-3600"));
    let due = login.0.as_ref().unwrap().renewal.due_at - Instant::now();
    assert!(due > Duration::from_secs(5_000) && due <= Duration::from_secs(5_760), "{due:?}");
    assert!(!format!("{login:?}").contains("s3cret"));
}

#[tokio::test]
async fn a_failed_renewal_keeps_the_token_and_is_repeated() {
    let down = TokenError::unavailable("the issuer is down; start it");
    let answers = vec![Ok(3_600), Err(down), Err(TokenError::refused("revoked; ask for it")), Ok(60)];
    let (mut login, client) = logged_in(answers).await.unwrap();
    for _ in 0..2 {
        renewed(&mut login, &client).await.unwrap();
        assert_eq!(token(&login), "s3cret-3600");
        let due = login.0.as_ref().unwrap().renewal.due_at;
        assert!(due <= Instant::now() + AGAIN_MAX);
    }
    renewed(&mut login, &client).await.unwrap();
    assert_eq!(token(&login), "s3cret-60");
    renewed(&mut login, &client).await.unwrap();
    assert_eq!(token(&login), "s3cret-60", "the provider hangs: the request has a limit");
}

#[tokio::test]
async fn a_session_ends_with_the_reason_before_its_token_expires() {
    let revoked = TokenError::refused("revoked; ask for it");
    let (mut login, client) = logged_in(vec![Ok(3_600), Err(revoked.clone())]).await.unwrap();
    let soon = || Token::new("s3cret", SystemTime::now() + MARGIN);
    login.0.as_mut().unwrap().token = std::iter::repeat_with(soon).find_map(Result::ok).unwrap();
    assert_eq!(renewed(&mut login, &client).await, Err(revoked));
}

#[tokio::test]
async fn without_a_first_token_there_is_no_client() {
    let error = logged_in(vec![Err(TokenError::refused("unknown client; register it"))]).await.unwrap_err();
    assert_eq!((error.fault(), error.to_string().as_str()), (Fault::Operator, "unknown client; register it"));
    let error = logged_in(vec![]).await.unwrap_err();
    assert_eq!(error.fault(), Fault::Broker);
    assert!(error.to_string().contains("within 100 ms; "), "{error}");
}

#[test]
fn outside_a_runtime_the_remedy_is_named() {
    let error = Login::of(&config(vec![Ok(60)]), None).unwrap_err();
    assert!(error.to_string().contains("Tokio runtime; call this within one"), "{error}");
    assert!(Login::of(&Config::new(["127.0.0.1:1"]), None).unwrap().0.is_none(), "no tokens, no runtime");
}
