//! Requests of administrators that librdkafka's client does not offer: bandwidth limits, and
//! passwords of SCRAM, of the shared Kafka. They are for names of the test's own, so no other test
//! notices them. The layouts are those of <https://kafka.apache.org/protocol.html>.

use hmac::{Hmac, Mac as _};
use sha2::Sha256;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::backends::Backend;
use crate::stage::Stage;
use crate::trial::{Failure, Outcome};

/// Rounds of the hash of a password: the fewest that Kafka accepts.
const ROUNDS: u32 = 4_096;

/// The number of SCRAM-SHA-256 in requests.
const SCRAM_SHA_256: u8 = 1;

/// A fixed salt: these passwords protect nothing.
const SALT: &[u8] = b"salt of the test";

/// The longest text of [`put_compact`]: its length must fit into one byte.
const COMPACT_MAX: usize = 126;

/// Limits the clients of this name to `bytes` a second that they publish, and as many that they
/// read. The limit is removed with the stage.
///
/// # Errors
/// Kafka refused or is unavailable.
pub async fn limit_bandwidth(stage: &Stage, client_id: &str, bytes: u32) -> Outcome {
    let doomed = client_id.to_owned();
    stage.afterwards(format!("the quota of {doomed}"), async move { set_quota(&doomed, None).await });
    set_quota(client_id, Some(bytes)).await
}

/// Creates a user who logs in with this password by SCRAM-SHA-256. Brokers learn of it a little
/// later. The user is removed with the stage.
///
/// # Errors
/// Kafka refused or is unavailable.
pub async fn create_user(stage: &Stage, user: &str, password: &str) -> Outcome {
    let doomed = user.to_owned();
    stage.afterwards(format!("the user {doomed}"), async move { remove_user(&doomed).await });
    set_password(user, password).await
}

/// Sets the password of a user for SCRAM-SHA-256. Brokers learn of it a little later.
///
/// # Errors
/// Kafka refused or is unavailable.
pub async fn set_password(user: &str, password: &str) -> Outcome {
    // No deletion and one change: each number is sent increased by one.
    let mut changes = vec![1, 2];
    put_compact(&mut changes, user.as_bytes())?;
    changes.push(SCRAM_SHA_256);
    changes.extend(ROUNDS.to_be_bytes());
    put_compact(&mut changes, SALT)?;
    put_compact(&mut changes, &salted(password)?)?;
    // No tagged fields.
    changes.push(0);
    alter_user(user, &changes).await
}

async fn remove_user(user: &str) -> Outcome {
    // One deletion, without tagged fields, and no change.
    let mut changes = vec![2];
    put_compact(&mut changes, user.as_bytes())?;
    changes.extend([SCRAM_SHA_256, 0, 1]);
    alter_user(user, &changes).await
}

/// Sends AlterUserScramCredentials, version 0.
async fn alter_user(user: &str, changes: &[u8]) -> Outcome {
    let mut request = header(51)?;
    // No tagged fields in the header, nor in the request.
    request.push(0);
    request.extend(changes);
    request.push(0);
    let answer = ask(&request).await?;
    // Before the error: correlation id, tagged fields, throttle time, number of results, user.
    check(&answer, 4 + 1 + 4 + 1 + 1 + user.len())
}

/// Sends AlterClientQuotas, version 0. Without `bytes` it removes the limits.
async fn set_quota(client_id: &str, bytes: Option<u32>) -> Outcome {
    let mut request = header(49)?;
    // One entry, which is for one name and sets two limits.
    request.extend([0, 0, 0, 1, 0, 0, 0, 1]);
    put(&mut request, "client-id")?;
    put(&mut request, client_id)?;
    request.extend([0, 0, 0, 2]);
    for limit in ["producer_byte_rate", "consumer_byte_rate"] {
        put(&mut request, limit)?;
        request.extend(f64::from(bytes.unwrap_or_default()).to_be_bytes());
        request.push(u8::from(bytes.is_none()));
    }
    // Not only a check.
    request.push(0);
    let answer = ask(&request).await?;
    // Before the error: correlation id, throttle time, number of entries.
    check(&answer, 4 + 4 + 4)
}

/// Begins a request of version 0 with this key: key, version, correlation id, client id.
fn header(key: u8) -> Result<Vec<u8>, Failure> {
    let mut request = vec![0, key, 0, 0, 0, 0, 0, 7];
    put(&mut request, "tests")?;
    Ok(request)
}

/// Appends a text behind its length in two bytes.
fn put(request: &mut Vec<u8>, text: &str) -> Outcome {
    request.extend(u16::try_from(text.len())?.to_be_bytes());
    request.extend(text.as_bytes());
    Ok(())
}

/// Appends bytes behind their length, which is increased by one.
fn put_compact(request: &mut Vec<u8>, bytes: &[u8]) -> Outcome {
    if bytes.len() > COMPACT_MAX {
        return Err(format!("{} bytes, at most {COMPACT_MAX}", bytes.len()).into());
    }
    request.push(u8::try_from(bytes.len() + 1)?);
    request.extend(bytes);
    Ok(())
}

/// Sends a request, and returns its answer.
async fn ask(request: &[u8]) -> Result<Vec<u8>, Failure> {
    let address = Backend::Kafka.address()?;
    let mut stream = TcpStream::connect(address.split(',').next().unwrap_or_default()).await?;
    stream.write_all(&u32::try_from(request.len())?.to_be_bytes()).await?;
    stream.write_all(request).await?;
    let length = stream.read_u32().await?;
    let mut answer = vec![0; usize::try_from(length)?];
    stream.read_exact(&mut answer).await?;
    Ok(answer)
}

/// Checks the error of the only result, which begins at this byte of an answer.
fn check(answer: &[u8], at: usize) -> Outcome {
    match answer.get(at..at + 2) {
        Some([0, 0]) => Ok(()),
        _ => Err(format!("kafka refused: {}", String::from_utf8_lossy(answer)).into()),
    }
}

/// Hashes a password as SCRAM demands (RFC 5802, `Hi`).
fn salted(password: &str) -> Result<Vec<u8>, Failure> {
    let keyed = Hmac::<Sha256>::new_from_slice(password.as_bytes())?;
    let mut last = digest(&keyed, &[SALT, &1_u32.to_be_bytes()].concat());
    let mut salted = last.clone();
    for _ in 1..ROUNDS {
        last = digest(&keyed, &last);
        salted.iter_mut().zip(&last).for_each(|(byte, more)| *byte ^= *more);
    }
    Ok(salted)
}

fn digest(keyed: &Hmac<Sha256>, bytes: &[u8]) -> Vec<u8> {
    let mut mac = keyed.clone();
    mac.update(bytes);
    mac.finalize().into_bytes().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: users get the password that the test names. Oracle: a value that Python's
    /// `hashlib.pbkdf2_hmac` gives for the same salt and the same number of rounds.
    #[test]
    fn a_password_is_salted_as_scram_demands() {
        let hash: String = salted("first").unwrap().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hash, "2232a228b3d3a3c17d329c178c8a90f995ad7ab96bafb5ff161c8ffb789bff5f");
    }
}
