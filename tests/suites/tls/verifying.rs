//! Servers that a client trusts or refuses: the same cases for every service.

use libtest_mimic::Trial;
use message::Fault;
use tests::tls::{Authority, Front, Shown};
use tests::{Outcome, Stage, trial};

use crate::places::{Place, Trust};

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for place in Place::ALL {
        let mut case =
            |name: &str, body: fn(Stage, Place) -> futures_util::future::BoxFuture<'static, Outcome>| {
                let name = format!("verifying/{}/{name}", place.backend());
                trials.push(trial(name, &[place.backend()], move |stage| body(stage, place)));
            };
        if place.works_behind_a_front() {
            case("the_right_authority_is_trusted", |stage, place| Box::pin(right(stage, place)));
        }
        case("another_authority_is_refused", |stage, place| Box::pin(refused(stage, place, Shown::Foreign)));
        case("another_host_is_refused", |stage, place| Box::pin(refused(stage, place, Shown::OtherHost)));
        case("an_expired_certificate_is_refused", |stage, place| {
            Box::pin(refused(stage, place, Shown::Expired))
        });
        case("an_authority_that_is_not_named_is_refused", |stage, place| Box::pin(unnamed(stage, place)));
        case("a_server_without_tls_is_refused", |stage, place| Box::pin(without_tls(stage, place)));
        if matches!(place, Place::Postgres | Place::Rabbitmq) {
            case("a_client_certificate_is_shown_when_asked_for", |stage, place| {
                Box::pin(mutual(stage, place))
            });
        }
    }
    trials
}

/// Goal: a private authority is sufficient. Oracle: the service's own answer, through the verified
/// connection.
async fn right(stage: Stage, place: Place) -> Outcome {
    let authority = Authority::new()?;
    let front = Front::start(&stage, place.target()?, place.opening(), &authority, Shown::Good, None).await?;
    let trust = Trust { authority: Some(authority.file(&stage)?), client: None };
    match place.attempt(&stage, front.port, &trust).await? {
        Ok(()) => Ok(()),
        Err(refused) => Err(refused.text.into()),
    }
}

/// Goal: a server that cannot prove its identity gets nothing. Oracle: the error names the
/// certificate, as the operator's fault.
async fn refused(stage: Stage, place: Place, shown: Shown) -> Outcome {
    let authority = Authority::new()?;
    let front = Front::start(&stage, place.target()?, place.opening(), &authority, shown, None).await?;
    let trust = Trust { authority: Some(authority.file(&stage)?), client: None };
    certificate_blamed(place.attempt(&stage, front.port, &trust).await?)
}

/// Goal: without a setting the system's authorities are used, and a private one is not among them.
async fn unnamed(stage: Stage, place: Place) -> Outcome {
    let authority = Authority::new()?;
    let front = Front::start(&stage, place.target()?, place.opening(), &authority, Shown::Good, None).await?;
    certificate_blamed(place.attempt(&stage, front.port, &Trust::default()).await?)
}

fn certificate_blamed(attempt: Result<(), crate::places::Refused>) -> Outcome {
    let Err(refused) = attempt else { return Err("the connection was made".into()) };
    assert_eq!(refused.fault, Fault::Operator, "{}", refused.text);
    assert!(refused.text.contains("certificate"), "{}", refused.text);
    Ok(())
}

/// Goal: no client falls back to plaintext. Oracle: no connection, although the service would
/// accept a plain one.
async fn without_tls(stage: Stage, place: Place) -> Outcome {
    let authority = Authority::new()?;
    let target = place.target()?;
    let port = match place {
        // The server itself may offer TLS, but this stand-in refuses it.
        Place::Postgres => plain_postgres(&stage, target).await?,
        _ => target.rsplit_once(':').ok_or("no port")?.1.parse()?,
    };
    let trust = Trust { authority: Some(authority.file(&stage)?), client: None };
    match place.attempt(&stage, port, &trust).await? {
        Ok(()) => Err("the connection was made in the clear".into()),
        Err(_) => Ok(()),
    }
}

/// Starts a front that refuses the request for TLS, then passes everything on. Returns its port.
async fn plain_postgres(stage: &Stage, target: String) -> Result<u16, tests::Failure> {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let port = listener.local_addr()?.port();
    let serving = tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let target = target.clone();
            tokio::spawn(async move {
                let mut request = [0; 8];
                client.read_exact(&mut request).await.ok()?;
                client.write_all(b"N").await.ok()?;
                let mut server = tokio::net::TcpStream::connect(target).await.ok()?;
                copy_bidirectional(&mut client, &mut server).await.ok()
            });
        }
    });
    stage.afterwards("plain front", async move {
        serving.abort();
        Ok(())
    });
    Ok(port)
}

/// Goal: a server that identifies its clients by certificates accepts ours, and refuses a client
/// without one.
async fn mutual(stage: Stage, place: Place) -> Outcome {
    let authority = Authority::new()?;
    let front =
        Front::start(&stage, place.target()?, place.opening(), &authority, Shown::Good, Some(&authority))
            .await?;
    let mut trust = Trust { authority: Some(authority.file(&stage)?), client: None };
    assert!(place.attempt(&stage, front.port, &trust).await?.is_err(), "let in without a certificate");
    trust.client = Some(Authority::new()?.client_files(&stage)?);
    assert!(place.attempt(&stage, front.port, &trust).await?.is_err(), "let in with another authority's");
    trust.client = Some(authority.client_files(&stage)?);
    place.attempt(&stage, front.port, &trust).await?.map_err(|refused| refused.text.into())
}
