//! Certificates and authorities that are replaced while a relay and a consumer run.

use std::sync::Arc;

use libtest_mimic::Trial;
use sqlx::Postgres;
use tests::brokers::{Broker, Kafka};
use tests::cluster::free_port;
use tests::kafka_server::KafkaServer;
use tests::relay_process::Config;
use tests::tls::{Authority, ClientFiles, Front, Opening, Shown};
use tests::trial::at_night;
use tests::workload::Workload;
use tests::{Backend, Failure, Outcome, RelayProcess, Stage, brokers as plain, trial};

use crate::places::{Place, Trust, verified};
use crate::services::{Secured, Way};

pub(crate) fn trials() -> Vec<Trial> {
    let case = |place: Place, more: &[Backend]| {
        let name = format!("renewing/{}/files_are_replaced_without_a_restart", place.backend());
        let needs = [&[Backend::Postgres, place.backend()], more].concat();
        trial(name, &needs, move |stage| replaced(stage, place))
    };
    let kafka = case(Place::Kafka, &[Backend::Xtask, Backend::TlsFiles]);
    // A FIFO queue redelivers messages of a cut connection only after the visibility timeout.
    let sqs = case(Place::Sqs, &[]);
    let mut trials = at_night(vec![kafka, sqs]);
    trials.push(case(Place::Rabbitmq, &[]));
    trials
}

/// Goal: database and broker get certificates of another authority, shortly afterwards their
/// clients do as well, and nothing needs a restart. Oracle: servers that know only the new
/// authority; the effect of every order, through the same relay and the same consumer.
async fn replaced(stage: Stage, place: Place) -> Outcome {
    let authority = Authority::new()?;
    let files = ClientFiles::new(&stage, &authority)?;
    let database =
        front(&stage, Place::Postgres.target()?, Opening::Requested, &authority, Some(&authority)).await?;
    let (server, broker) = secured(&stage, place, &authority, &files).await?;
    let is_mutual = broker.way == Way::KafkaCertificate;

    let workload = Workload::<Postgres>::open(&stage, Arc::new(broker)).await?;
    let client = Some((files.chain.clone(), files.key.clone()));
    let trust = Trust { authority: Some(files.authority.clone()), client };
    let url = verified(&workload.database.relay_url()?, database.port, &trust)?;
    let mut relay =
        RelayProcess::start(&stage, &Config::write(&stage, "orders", &url, workload.broker.as_ref(), "")?)?;
    let consumer = workload.consume().await?;
    workload.place_many(3, 12).await?;
    workload.settled().await?;

    let next = Authority::new()?;
    database.renew(&next, Some(&next))?;
    server.renew(&next, is_mutual.then_some(&next))?;
    workload.place_many(3, 6).await?;
    relay.tells("certificate").await?;
    files.renew(&next)?;
    workload.place_many(3, 6).await?;
    workload.settled().await?;
    assert!(relay.has_ended()?.is_none(), "the relay has ended");
    consumer.stop().await?;
    relay.stop().await
}

async fn front(
    stage: &Stage,
    target: String,
    opening: Opening,
    authority: &Authority,
    clients: Option<&Authority>,
) -> Result<Front, Failure> {
    Front::start(stage, target, opening, authority, Shown::Good, clients).await
}

/// Starts a front for a broker. Returns the front and the broker behind it.
async fn secured(
    stage: &Stage,
    place: Place,
    authority: &Authority,
    files: &ClientFiles,
) -> Result<(Front, Secured), Failure> {
    let (server, way, plain, address): (_, _, Arc<dyn Broker>, _) = match place {
        Place::Kafka => {
            // The broker advertises the front's port to its clients.
            let listening = free_port()?;
            let target = format!("127.0.0.1:{listening}");
            let server = front(stage, target, Opening::Direct, authority, Some(authority)).await?;
            let kafka = KafkaServer::start(stage, (listening, server.port)).await?;
            let address = format!("127.0.0.1:{}", server.port);
            (server, Way::KafkaCertificate, Arc::new(Kafka::new(stage, kafka.address())), address)
        }
        Place::Rabbitmq => {
            let server = front(stage, place.target()?, Opening::Direct, authority, None).await?;
            let address = format!("amqps://127.0.0.1:{}/%2f", server.port);
            (server, Way::RabbitmqPassword, plain::open(stage, place.backend()).await?, address)
        }
        _ => {
            let server = front(stage, Place::Sqs.target()?, Opening::Direct, authority, None).await?;
            let address = server.port.to_string();
            (server, Way::SqsKey, plain::open(stage, Backend::SqsFifo).await?, address)
        }
    };
    let broker = Secured {
        way,
        plain,
        address,
        authority: files.authority.clone(),
        client: (files.chain.clone(), files.key.clone()),
        password: "guest",
        issuer: None,
    };
    Ok((server, broker))
}
