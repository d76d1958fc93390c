//! The vocabulary of the toolkit: the message envelope, its identity, and the two seams every
//! broker implements.
//!
//! This crate knows no database and no broker client; everything else depends on it.
//!
//! | module | what it holds |
//! |---|---|
//! | `message` | [`Message`], the envelope on its way from producer to consumer |
//! | `id` | [`MessageId`], a UUIDv7 that carries its generation time |
//! | [`token`] | [`Token`](token::Token): an identity and its time; windows of accepted times; generators of ids |
//! | `tenant` | [`Tenant`]: the tenant or account that a message or a request is for |
//! | `consumer` | [`ConsumerName`], [`DeadLetterId`]: a consumer, and the id of a message that it gave up |
//! | `text` | validated names: [`Topic`], [`OrderingKey`], [`EventType`], [`Source`], [`ContentType`] |
//! | `header` | [`Headers`]: free, validated name/value pairs |
//! | `trace` | [`TraceContext`]: W3C trace context |
//! | `fingerprint` | [`Fingerprint`]: SHA-256 over what must not change under one id |
//! | `foreign_message` | [`ForeignMessage`]: a message read from a delivery without a usable envelope |
//! | [`foreign`] | mappings that read the forms of other libraries |
//! | `evidence` | the typed parts of such a delivery: [`Malformed::raw_key`], [`Malformed::header_bytes`] |
//! | `new_message`, `into_message` | [`NewMessage`]: a message that a producer builds; [`IntoMessage`]: everything that can be enqueued |
//! | `identity` | [`Difference`]: compares a message with the one that has its id |
//! | [`canonical_json`] | one text for every way of writing the same JSON |
//! | [`addresses`] | connects to a host that has several addresses |
//! | [`host_list`] | reads URLs that name several hosts |
//! | [`loopback`] | recognises addresses of this machine |
//! | `backoff` | [`Backoff`]: delays between retries; pauses with jitter |
//! | `chunk`, `splitter` | [`Chunk`] and [`Splitter`]: messages that are larger than their destination accepts |
//! | `limits` | [`SizeLimit`]: the largest message that a destination accepts |
//! | [`cloudevents`] | the CloudEvents 1.0 attributes of a message, written and read |
//! | [`crash_points`] | places at which a test ends the process |
//! | [`error_text`] | texts of errors for tables and log lines |
//! | `event` | [`Event`]: a payload of a type that knows its topic and kind |
//! | `fault` | [`Fault`] and [`FaultScope`]: the party at fault for a failure, and its reach |
//! | `metric` | [`Metric`]: one row of a table of metrics |
//! | `publisher` | [`Connector`], [`Publisher`], [`Receipt`]: the seam towards brokers |
//! | `subscription` | [`Subscriber`], [`Subscription`], [`Delivery`], [`Settlement`]: the seam from brokers |
//! | `runtime` | [`Runtime`]: the source of tasks and random numbers |
//! | [`units`] | durations and sizes as people read them |
//! | `sealing` | [`Sealing`]: payloads that are encrypted for a subject, until its key is deleted |
//! | `spans` | moves times without leaving their range, and limits that can be added to them |
//! | `steady_clock` | [`SteadyClock`]: the second clock that must agree before something is forgotten |
//! | `transactions` | [`Transactions`]: the seam towards brokers that publish in transactions |
//! | `proof` | [`Committed`]: the proof that an acknowledgement requires |
//! | `testing` (feature) | a broker that answers as a test says |
//! | `wire_headers` | [`WireHeaders`]: bounds of the headers of a delivery |

pub mod addresses;
mod backoff;
mod bounds;
pub mod canonical_json;
mod chunk;
pub mod cloudevents;
mod consumer;
pub mod crash_points;
pub mod error_text;
mod event;
mod evidence;
mod fault;
mod fingerprint;
pub mod foreign;
mod foreign_message;
mod header;
pub mod host_list;
mod id;
mod identity;
mod into_message;
mod limits;
pub mod loopback;
mod message;
mod metric;
mod new_message;
mod proof;
mod publisher;
mod runtime;
mod sealing;
mod setters;
mod shield;
mod spans;
mod splitter;
mod steady_clock;
#[doc(hidden)]
pub mod structured;
mod subscription;
mod tenant;
#[cfg(feature = "testing")]
pub mod testing;
mod text;
pub mod token;
mod trace;
mod transactions;
pub mod units;
#[cfg(test)]
mod vectors;
mod wire_headers;
mod words;

pub use backoff::{Backoff, jittered};
pub use bounds::OutOfBounds;
pub use chunk::{
    CHUNK_ATTRIBUTES, CHUNKED_BYTES_MAX, CHUNKED_BYTES_MAX_DEFAULT, CHUNKS_MAX, Chunk, InvalidChunk,
};
pub use consumer::{ConsumerName, DeadLetterId};
pub use event::Event;
pub use fault::{Fault, FaultScope};
pub use fingerprint::{Fingerprint, FingerprintLength, InvalidFingerprint};
pub use foreign_message::ForeignMessage;
pub use header::{HEADER_VALUE_BYTES_MAX, HEADERS_MAX, HeaderName, HeaderValue, Headers};
pub use id::{InvalidId, MessageId};
pub use identity::{Difference, IdReused};
#[doc(hidden)]
pub use identity::{Stored, VaryingHeaders, digest};
pub use into_message::IntoMessage;
pub use limits::{Oversize, OversizePart, SizeLimit};
pub use message::{Message, TOMBSTONE};
pub use metric::{Metric, MetricKind};
#[doc(hidden)]
pub use new_message::Prepared;
pub use new_message::{InvalidMessage, NewMessage};
pub use proof::Committed;
pub use publisher::{
    CONNECT_MAX_DEFAULT, Capabilities, Connector, MaxInFlightPerKey, PublishError, Publisher, Receipt,
    Receipts, Submission, Ticket, Unrouted,
};
pub use runtime::Runtime;
#[cfg(feature = "testing")]
pub use runtime::Simulated;
#[doc(hidden)]
pub use sealing::mark_sealed;
pub use sealing::{
    ERASED_CONTENT_TYPE, Opened, SEALED_CONTENT_TYPE, SEALED_FOR, SEALED_TYPE, Sealing, SealingError,
    open_message,
};
pub use shield::{ToItsEnd, shield};
#[doc(hidden)]
pub use spans::{ahead, back, finite};
pub use splitter::{PayloadEncoding, Splitter};
pub use steady_clock::SteadyClock;
pub use subscription::{
    Delivery, DeliveryToken, Disposition, Lag, Malformed, ProofMismatch, Settlement, Subscriber,
    Subscription, SubscriptionError,
};
pub use tenant::Tenant;
pub use text::{
    ContentType, EventType, InvalidText, NOTE_BYTES_MAX, OrderingKey, Source, TEXT_BYTES_MAX, Topic,
};
#[doc(hidden)]
pub use text::{check_name, check_optional, check_signature};
pub use trace::{InvalidTrace, TraceContext};
pub use transactions::{ClosedTransaction, TransactionMark, TransactionScope, Transactions};
pub use wire_headers::{HeadersCut, WIRE_HEADER_BYTES_MAX, WIRE_HEADERS_MAX, WireHeaders};
