//! The fingerprints of calls, with requests that have maps.

use std::collections::{BTreeMap, HashMap, HashSet};

use examples::grpc::once::content;
use prost::Message as _;

/// An order with labels, as `tonic_prost_build` writes it with `.btree_map(".")`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
struct Ordered {
    #[prost(btree_map = "string, string", tag = "1")]
    labels: BTreeMap<String, String>,
}

/// The same, as it is written without that.
#[derive(Clone, PartialEq, Eq, prost::Message)]
struct Unordered {
    #[prost(map = "string, string", tag = "1")]
    labels: HashMap<String, String>,
}

fn labels() -> impl Iterator<Item = (String, String)> {
    (0..32).map(|number| (format!("label-{number}"), String::from("value")))
}

#[test]
fn a_map_has_one_fingerprint_in_every_order_of_its_entries() {
    let mut sent = HashSet::new();
    let mut contents = HashSet::new();
    for _ in 0..20 {
        // A client whose map has no order.
        let bytes = Unordered { labels: labels().collect() }.encode_to_vec();
        let received = Ordered::decode(&*bytes).expect("the same message");
        contents.insert(*content("shop.Orders/Place", &received).expect("it has an order").as_bytes());
        sent.insert(bytes);
    }
    assert!(sent.len() > 1, "every order is the same");
    assert_eq!(contents.len(), 1);
}

#[test]
fn a_map_without_an_order_is_refused() {
    let request = Unordered { labels: labels().collect() };
    let status = content("shop.Orders/Place", &request).expect_err("it has none");
    assert_eq!(status.code(), tonic::Code::Internal);
}
