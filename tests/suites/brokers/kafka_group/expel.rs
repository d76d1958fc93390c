//! Removal of members from a group. To the coordinator it is the same as an expired session.

use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use tests::{Backend, Failure, Outcome};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const PATIENCE: Duration = Duration::from_secs(120);

/// Removes every member from a group. Each finds out at its next heartbeat.
pub(crate) async fn expel_all(group: &str) -> Outcome {
    let name = group.to_owned();
    let listing = move || -> Result<Vec<String>, Failure> {
        let consumer: BaseConsumer =
            ClientConfig::new().set("bootstrap.servers", Backend::Kafka.address()?).create()?;
        let groups = consumer.client().fetch_group_list(Some(&name), PATIENCE)?;
        let members = groups.groups().iter().flat_map(|group| group.members());
        Ok(members.map(|member| member.id().to_owned()).collect())
    };
    let members = tokio::task::spawn_blocking(listing).await??;
    assert!(!members.is_empty(), "the group {group} has no members");
    for member in members {
        leave(group, &member).await?;
    }
    Ok(())
}

/// Sends a LeaveGroup request of version 1 and reads the answer
/// (<https://kafka.apache.org/protocol.html#The_Messages_LeaveGroup>).
async fn leave(group: &str, member: &str) -> Outcome {
    let mut request = Vec::new();
    // Key, version, correlation id, client id.
    request.extend([0, 13, 0, 1, 0, 0, 0, 7]);
    for text in ["expel", group, member] {
        request.extend(u16::try_from(text.len())?.to_be_bytes());
        request.extend(text.as_bytes());
    }
    let address = Backend::Kafka.address()?;
    let mut stream = TcpStream::connect(address.split(',').next().unwrap_or_default()).await?;
    stream.write_all(&u32::try_from(request.len())?.to_be_bytes()).await?;
    stream.write_all(&request).await?;
    // Size, correlation id, throttle time, error.
    let mut answer = [0; 14];
    stream.read_exact(&mut answer).await?;
    let error = i16::from_be_bytes([answer[12], answer[13]]);
    if error == 0 { Ok(()) } else { Err(format!("{member} could not leave: error {error}").into()) }
}
