//! Brokers that advertise an address for another network. A server with two answers plays the
//! cluster: librdkafka's mock advertises what it listens on.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

use super::super::listeners::{Listener, listeners};
use super::*;

const API_VERSIONS: i16 = 18;
const METADATA: i16 = 3;
/// `UNSUPPORTED_VERSION`, which librdkafka answers with an older request.
const UNSUPPORTED: i16 = 35;

/// Starts a server for one broker, number 7, that advertises this port of this machine. Returns its
/// own address.
fn advertises(port: u16) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // It ends with the process.
    thread::spawn(move || {
        for stream in listener.incoming() {
            thread::spawn(move || serve(stream.unwrap(), port));
        }
    });
    address
}

fn serve(mut stream: TcpStream, port: u16) {
    while let Some(request) = request(&mut stream) {
        let two = |at: usize| i16::from_be_bytes([request[at], request[at + 1]]);
        let answer = match (two(0), two(2)) {
            (API_VERSIONS, 0) => [0_i16.to_be_bytes().to_vec(), versions()].concat(),
            (API_VERSIONS, _) => [UNSUPPORTED.to_be_bytes().to_vec(), versions()].concat(),
            (METADATA, _) => metadata(port),
            _ => return,
        };
        let body = [request[4..8].to_vec(), answer].concat();
        let size = u32::try_from(body.len()).unwrap().to_be_bytes();
        // The client may have left.
        let _ = stream.write_all(&[size.to_vec(), body].concat());
    }
}

fn request(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut size = [0; 4];
    stream.read_exact(&mut size).ok()?;
    let mut request = vec![0; u32::from_be_bytes(size) as usize];
    stream.read_exact(&mut request).ok()?;
    Some(request)
}

fn versions() -> Vec<u8> {
    // Of the others, the client only wants to know that they exist: produce, fetch, find the
    // coordinator, begin as an idempotent producer.
    let kinds = [(0, 7), (1, 11), (METADATA, 2), (10, 1), (API_VERSIONS, 0), (22, 1)];
    let mut bytes = i32::try_from(kinds.len()).unwrap().to_be_bytes().to_vec();
    for (api, max) in kinds {
        bytes.extend([api, 0, max].into_iter().flat_map(i16::to_be_bytes));
    }
    bytes
}

/// Version 2: brokers (id, host, port, no rack), the cluster, the controller, no topics.
fn metadata(port: u16) -> Vec<u8> {
    let host = b"127.0.0.1";
    let mut bytes = [1_i32, 7].into_iter().flat_map(i32::to_be_bytes).collect::<Vec<u8>>();
    bytes.extend(i16::try_from(host.len()).unwrap().to_be_bytes());
    bytes.extend(host);
    bytes.extend(i32::from(port).to_be_bytes());
    bytes.extend((-1_i16).to_be_bytes());
    bytes.extend(1_i16.to_be_bytes());
    bytes.push(b'c');
    bytes.extend([7_i32, 0].into_iter().flat_map(i32::to_be_bytes));
    bytes
}

#[tokio::test]
async fn an_advertised_address_that_cannot_be_reached_is_named() {
    // Nothing listens on the port once this socket is closed.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let config = Config::new([advertises(port).to_string()]);
    let found = listeners(&config).await.unwrap();
    let [Listener { broker: 7, address, problem: Some(problem) }] = &found[..] else { panic!("{found:?}") };
    assert_eq!(*address, format!("127.0.0.1:{port}"));
    assert!(problem.contains("refused"), "{problem}");
}

#[tokio::test]
async fn every_advertised_address_of_a_cluster_is_reached() {
    let mock = Mock::start(3).unwrap();
    let found = listeners(&Config::new(mock.bootstrap_servers())).await.unwrap();
    let reached: Vec<i32> =
        found.iter().filter(|found| found.problem.is_none()).map(|found| found.broker).collect();
    assert_eq!(reached, [1, 2, 3], "{found:?}");
}

/// The session opens, because the bootstrap server answers, but nothing can be sent.
#[tokio::test]
async fn a_session_tells_which_address_it_cannot_reach() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let connector = Connector::new(Config::new([advertises(port).to_string()])).unwrap();
    let (mut publisher, _received) = session(&connector).await;
    publisher.submit(batch(0, [keyed(TOPIC, "k", "{}")])).await;
    let told = async {
        loop {
            match connector.last_error() {
                Some(told) => return told,
                None => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    };
    let told = tokio::time::timeout(LONG, told).await.unwrap();
    assert!(told.contains(&format!("127.0.0.1:{port}")), "{told}");
}
