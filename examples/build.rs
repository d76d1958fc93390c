//! Writes the server of `proto/orders.proto`. A service of your own calls
//! `tonic_prost_build::compile_protos(..)`, which also writes the messages, and needs `protoc`.

use tonic_build::manual::{Builder, Method, Service};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let place = Method::builder()
        .name("place")
        .route_name("Place")
        .input_type("crate::grpc::PlaceOrder")
        .output_type("crate::grpc::Placed")
        .codec_path("tonic_prost::ProstCodec")
        .build();
    let orders = Service::builder().package("shop").name("Orders").method(place).build();
    Builder::new().build_client(false).compile(&[orders]);
}
