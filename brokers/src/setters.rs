//! Setters of the configurations, one for each field that its constructor does not set.

mod tls {
    use std::path::PathBuf;

    impl crate::Tls {
        message::setters! {
            ca_file: Option<PathBuf>,
            cert_file: Option<PathBuf>,
            key_file: Option<PathBuf>,
            verify: bool,
        }
    }
}

#[cfg(feature = "http")]
mod http {
    use std::collections::BTreeMap;
    use std::path::PathBuf;

    use crate::Tls;
    use crate::http::{AllowedHost, Config, Endpoint, Mode};

    impl Config {
        message::setters! {
            url: Option<String>,
            secret_files: Vec<PathBuf>,
            endpoints: BTreeMap<String, Endpoint>,
            endpoint_header: Option<String>,
            hosts: BTreeMap<String, AllowedHost>,
            mode: Mode,
            tls: Option<Tls>,
            allow_plaintext: bool,
            private_networks: Vec<String>,
            accepted_statuses: Vec<u16>,
            stopping_statuses: Vec<u16>,
            retry_after_max_secs: u64,
            concurrency: usize,
            requests_max: usize,
            message_bytes_max: usize,
            connect_timeout_ms: u64,
            request_timeout_ms: u64,
        }

        /// Adds the endpoint of a topic to `endpoints`.
        #[must_use]
        pub fn endpoint(mut self, topic: impl Into<String>, endpoint: Endpoint) -> Self {
            self.endpoints.insert(topic.into(), endpoint);
            self
        }
    }

    impl Endpoint {
        message::setters! {
            secret_files: Vec<PathBuf>,
        }
    }

    impl AllowedHost {
        message::setters! {
            secret_files: Vec<PathBuf>,
        }
    }
}

#[cfg(any(feature = "kafka", feature = "rabbitmq"))]
mod oauth {
    use std::path::PathBuf;

    use secrecy::SecretString;

    use crate::oauth::OAuth;

    impl OAuth {
        message::setters! {
            client_secret: Option<SecretString>,
            client_secret_file: Option<PathBuf>,
            scope: Option<String>,
            audience: Option<String>,
            ca_file: Option<PathBuf>,
            timeout_ms: u64,
        }
    }
}

#[cfg(feature = "kafka")]
mod kafka {
    use std::collections::BTreeMap;
    use std::path::PathBuf;

    use secrecy::SecretString;

    use crate::Tls;
    use crate::kafka::{Aws, Compression, Config, GroupConfig, Mechanism, Partition, Sasl, Start};

    impl Config {
        message::setters! {
            client_id: String,
            tls: Option<Tls>,
            allow_plaintext: bool,
            sasl: Option<Sasl>,
            compression: Compression,
            linger_ms: u32,
            message_bytes_max: usize,
            queue_bytes_max: usize,
            connect_timeout_ms: u64,
            create_topics: bool,
            transactional: bool,
            properties: BTreeMap<String, SecretString>,
        }

        /// Adds a property of librdkafka to `properties`.
        #[must_use]
        pub fn property(mut self, name: impl Into<String>, value: impl Into<SecretString>) -> Self {
            self.properties.insert(name.into(), value.into());
            self
        }
    }

    impl Sasl {
        message::setters! {
            mechanism: Mechanism,
            password: Option<SecretString>,
            password_file: Option<PathBuf>,
            extensions: BTreeMap<String, String>,
        }

        /// Adds a SASL extension to `extensions`.
        #[must_use]
        pub fn extension(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
            self.extensions.insert(name.into(), value.into());
            self
        }
    }

    impl Aws {
        message::setters! {
            region: Option<String>,
            profile: Option<String>,
        }
    }

    impl GroupConfig {
        message::setters! {
            partitions: Vec<Partition>,
            start: Start,
            prefetch_len: usize,
            session_timeout_ms: u64,
        }
    }
}

#[cfg(feature = "rabbitmq")]
mod rabbitmq {
    use std::collections::BTreeMap;
    use std::path::PathBuf;

    use secrecy::SecretString;

    use crate::Tls;
    use crate::oauth::OAuth;
    use crate::rabbitmq::{Auth, Config, Unroutable};

    impl Config {
        message::setters! {
            username: Option<String>,
            password: Option<SecretString>,
            password_file: Option<PathBuf>,
            oauth: Option<OAuth>,
            auth: Auth,
            tls: Option<Tls>,
            management_url: Option<String>,
            allow_plaintext: bool,
            connection_name: String,
            heartbeat_secs: u16,
            connect_timeout_ms: u64,
            exchange: String,
            unroutable: Unroutable,
            unroutable_topics: BTreeMap<String, Unroutable>,
            app_id: Option<String>,
            connections: usize,
            window_messages_max: usize,
            payload_bytes_max: usize,
            confirm_timeout_ms: u64,
            prefetch: u16,
        }
    }
}

#[cfg(feature = "sqs")]
mod sqs {
    use std::collections::BTreeMap;
    use std::path::PathBuf;

    use secrecy::SecretString;

    use crate::Tls;
    use crate::sqs::Config;

    impl Config {
        message::setters! {
            region: Option<String>,
            endpoint_url: Option<String>,
            tls: Option<Tls>,
            allow_plaintext: bool,
            profile: Option<String>,
            access_key_id: Option<String>,
            access_key_id_file: Option<PathBuf>,
            secret_access_key: Option<SecretString>,
            secret_access_key_file: Option<PathBuf>,
            session_token: Option<SecretString>,
            session_token_file: Option<PathBuf>,
            queues: BTreeMap<String, String>,
            queue_owner: Option<String>,
            concurrency: usize,
            linger_ms: u64,
            fair_queues: bool,
            message_bytes_max: usize,
            connect_timeout_ms: u64,
            request_timeout_ms: u64,
            attempts: u32,
            visibility_timeout_secs: u32,
            poll_wait_secs: u32,
            receive_concurrency: usize,
        }
    }
}
