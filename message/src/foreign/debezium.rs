//! Records that Debezium writes to Kafka.

use bytes::Bytes;
use uuid::Uuid;

use super::arrival::place_id;
use super::body::{Object, contains, plain};
use super::identity::{identity, of_millis};
use super::unmapped::Unmapped;
use crate::evidence::ordering_key;
use crate::foreign_message::ForeignMessage;
use crate::id::MessageId;
use crate::subscription::Malformed;
use crate::text::{ContentType, OrderingKey, Source};

const CHANGE: &str = "change event of Debezium";

/// The prefix of topics to which the outbox event router sends by default.
const ROUTED: &str = "outbox.event.";

/// Parts of a change's position in the log of one server of MySQL or MariaDB. Another server has
/// the same transaction at another position, under the same GTID.
const OF_THE_SERVER: [&str; 4] = ["server_id", "file", "pos", "thread"];

/// Parts of a change's origin that can differ when the connector sends it again: its own version
/// and progress, what it read beside the change, and what settings of the server add.
const VOLATILE: [&str; 13] = [
    "version",
    "snapshot",
    "sequence",
    "ts_ms",
    "ts_us",
    "ts_ns",
    "xmin",
    "query",
    "redo_sql",
    "user_name",
    "low_watermark",
    "read_at_timestamp",
    "resolved_ts",
];

/// The first version of Debezium that goes on counting the changes of a transaction when it is
/// restarted in the middle. Earlier ones begin again at 1.
const COUNTS_ON: [u32; 2] = [3, 7];

/// Reads a record of Debezium's outbox event router. The id is the header `id`, the kind the header
/// `eventType` or `type`, else the topic without `outbox.event.`. A record without a value, which
/// the router sends for an empty payload, is a message as well.
///
/// An event that the connector sends twice is recognised only by an id of version 7. Any other id
/// is made with the time of the record, which must be that of the event: set
/// `table.field.event.timestamp` of the router.
///
/// # Errors
/// [`Unmapped::OtherForm`]: there is no header `id`. [`Unmapped::Invalid`]: it is empty, or the
/// record has no time.
pub fn debezium_outbox(malformed: &Malformed) -> Result<ForeignMessage, Unmapped> {
    let id = malformed
        .header("id")
        .ok_or_else(|| Unmapped::other_form("no record of Debezium's outbox event router: no header id"))?;
    let topic = malformed.topic.as_str();
    let routed = topic.strip_prefix(ROUTED).filter(|rest| !rest.is_empty()).unwrap_or(topic);
    let named = ["eventType", "type"].into_iter().find_map(|name| malformed.header(name));
    let kind = named.filter(|kind| !kind.is_empty()).unwrap_or(routed);
    // Converters can write texts as JSON.
    let id = plain(id).unwrap_or_else(|| id.to_owned());
    let message = malformed.to_message(identity(malformed, topic, &id, None)?, kind)?;
    let message = match key(malformed) {
        Some(key) => message.key(key),
        None => message,
    };
    Ok(match without_schema(&malformed.payload)? {
        Some(payload) => message.payload(payload),
        None => message,
    })
}

/// Reads a record in a topic of the outbox event router. It is recognised by that name and the
/// header `id`, whatever other headers the router adds.
pub(super) fn routed(malformed: &Malformed) -> Result<ForeignMessage, Unmapped> {
    if malformed.topic.starts_with(ROUTED) {
        return debezium_outbox(malformed);
    }
    Err(Unmapped::other_form(format!("the topic does not begin with {ROUTED}")))
}

/// Reads a record that may be one of the outbox event router: its header `id` is a UUID. Any other
/// id could name something that occurs in several events, which would then share one id.
pub(super) fn perhaps_routed(malformed: &Malformed) -> Result<ForeignMessage, Unmapped> {
    let id = malformed.header("id").map(|id| plain(id).unwrap_or_else(|| id.to_owned()));
    if id.is_none_or(|id| Uuid::try_parse(&id).is_ok()) {
        return debezium_outbox(malformed);
    }
    Err(Unmapped::other_form(
        "no record of Debezium's outbox event router: the header id is not a UUID; if its events have \
         other ids, name debezium_outbox as the mapping",
    ))
}

/// Returns the payload that a JSON converter with schemas has wrapped; `None` for any other body.
fn without_schema(body: &[u8]) -> Result<Option<Bytes>, Unmapped> {
    let Some(object) = Object::with("payload", body, &["payload"])? else { return Ok(None) };
    if object.all().any(|(name, _)| !["schema", "payload"].contains(&name)) || object.all().count() != 2 {
        return Ok(None);
    }
    let Some(json) = object.raw("payload") else { return Ok(None) };
    let text = serde_json::from_str::<String>(json);
    Ok(Some(text.map_or_else(|_| Bytes::copy_from_slice(json.as_bytes()), Bytes::from)))
}

/// Reads a change event of Debezium, with or without its schema. The payload is the whole event
/// (`before`, `after`, `source`, `op`, …), byte for byte. The kind is the table and what happened:
/// `orders.created`, `.updated`, `.deleted`, `.read` (in a snapshot), `.truncated`, `.message`. A
/// record without a value, which follows a deletion, is the kind `orders.tombstone`.
///
/// The id is made of topic, key, content and position in the database's log, at the time of the
/// change. So a change that the connector sends twice has the same id. The position of MySQL and
/// MariaDB is the GTID, if there is one, so that it is the same on every server. Equal changes of a
/// row in one transaction then have one id, unless Debezium 3.7 or later numbers them
/// (`provide.transaction.metadata`). With MongoDB and Vitess they always have one id, and so do two
/// deletions of a document in one transaction. Changes without a key or a time, and tombstones,
/// have their place in the topic as id.
///
/// **A row that a snapshot reads has the id of that reading.** If a snapshot is repeated, or was
/// interrupted and begins again, its rows are new messages: nothing in them says when the row was
/// written, or whether it has returned to an earlier state. So a handler of `.read` must set the
/// state of the row, such as by an upsert, and add nothing.
///
/// # Errors
/// [`Unmapped::OtherForm`]: this is not a change event. [`Unmapped::Invalid`]: a member occurs
/// twice, or the record has neither a position nor a time.
pub fn debezium_change(malformed: &Malformed) -> Result<ForeignMessage, Unmapped> {
    if malformed.is_tombstone() {
        return tombstone(malformed);
    }
    let Some(change) = change(&malformed.payload)? else {
        return Err(Unmapped::other_form("no change event of Debezium"));
    };
    let position = change.event.object("source")?;
    let origin = |name: &str| position.as_ref().and_then(|position| position.text(name));
    let operation = change.event.required("op")?;
    let table = origin("table").or_else(|| origin("collection"));
    let table = table.unwrap_or_else(|| last_part(&malformed.topic).to_owned());
    let kind = format!("{table}.{}", word(&operation));
    let id = change_id(malformed, &change.event, position.as_ref(), &operation)?;
    let mut message =
        malformed.to_message(id, &kind)?.payload(change.payload).content_type(ContentType::json());
    if let Some(source) = origin("name").and_then(|name| Source::new(format!("/debezium/{name}")).ok()) {
        message = message.source(source);
    }
    Ok(match key(malformed) {
        Some(key) => message.key(key),
        None => message,
    })
}

/// A change event, and its bytes without a schema.
struct Change<'a> {
    event: Object<'a>,
    payload: Bytes,
}

fn change(body: &[u8]) -> Result<Option<Change<'_>>, Unmapped> {
    // Any JSON can have one of these members: only what has the form of a change is checked.
    let Some(outer) = contains(body, br#""op""#).then(|| Object::unchecked(CHANGE, body)).flatten() else {
        return Ok(None);
    };
    let is_change = |event: &Object<'_>| {
        event.raw("op").is_some() && (event.raw("source").is_some() || event.raw("ts_ms").is_some())
    };
    if is_change(&outer) {
        return Ok(Some(Change { event: outer.checked()?, payload: Bytes::copy_from_slice(body) }));
    }
    let inner = outer.raw("payload").and_then(|json| Object::unchecked(CHANGE, json.as_bytes()));
    let Some(event) = inner.filter(is_change) else { return Ok(None) };
    let payload = outer.checked()?.payload("payload").unwrap_or_default();
    Ok(Some(Change { event: event.checked()?, payload }))
}

/// Returns the id of a change: that of its position, or of its place in the topic.
fn change_id(
    malformed: &Malformed,
    event: &Object<'_>,
    position: Option<&Object<'_>>,
    operation: &str,
) -> Result<MessageId, Unmapped> {
    let of_place = || place_id(malformed).map_err(|error| Unmapped::invalid(error.to_string()));
    let (Some(key), Some(position)) = (malformed.raw_key(), position) else { return of_place() };
    let millis = position.text("ts_ms").and_then(|text| text.parse().ok()).filter(|millis| *millis > 0);
    let Some(at) = millis.and_then(of_millis) else { return of_place() };
    let mut parts: Vec<Vec<u8>> = vec![malformed.topic.clone().into_bytes(), key, operation.into()];
    for name in content(event, position) {
        parts.push(event.raw(name).unwrap_or_default().into());
    }
    let has_gtid = position.text("gtid").is_some_and(|gtid| !gtid.is_empty());
    let is_left_out = |name| VOLATILE.contains(&name) || has_gtid && OF_THE_SERVER.contains(&name);
    for (name, json) in position.all().filter(|(name, _)| !is_left_out(*name)) {
        let own = if name == "vgtid" { of_shard(position) } else { None };
        parts.extend([name.into(), own.unwrap_or_else(|| json.to_owned()).into()]);
    }
    // The connector of MongoDB forgets its numbers when it is restarted, and that of Vitess sends
    // the whole transaction again, in some versions under further numbers.
    let is_numbered = has_gtid && position.text("version").is_some_and(|version| counts_on(&version));
    if let Some(transaction) = event.object("transaction")?.filter(|_| is_numbered) {
        parts.push(transaction.text("total_order").unwrap_or_default().into());
    }
    Ok(MessageId::derived(at, parts)?)
}

/// Returns the members of a change that are its content, and the same whenever it is sent. With an
/// update of MongoDB, `after` is the document as the connector finds it later, and `before` is
/// there until the server removes it.
fn content(event: &Object<'_>, position: &Object<'_>) -> &'static [&'static str] {
    let is_described = event.raw("updateDescription").is_some_and(|json| json != "null");
    match position.text("connector").as_deref() {
        _ if is_described => &["updateDescription"],
        Some("mongodb") => &["after"],
        _ => &["before", "after"],
    }
}

/// Returns the position in a change's own shard of Vitess. The positions of other shards beside it
/// are as far as the connector has read them.
fn of_shard(position: &Object<'_>) -> Option<String> {
    let shard = position.text("shard")?;
    let shards: Vec<serde_json::Value> = serde_json::from_str(&position.text("vgtid")?).ok()?;
    let own = shards.iter().find(|entry| entry["shard"] == shard.as_str())?;
    own["gtid"].as_str().map(str::to_owned)
}

/// Whether this version of Debezium counts the changes of a transaction on after a restart.
fn counts_on(version: &str) -> bool {
    let parts: Vec<u32> = version.split('.').map_while(|part| part.parse().ok()).take(2).collect();
    parts.as_slice() >= COUNTS_ON.as_slice()
}

/// Reads a record without a value, if it has a key and no header of another library.
fn tombstone(malformed: &Malformed) -> Result<ForeignMessage, Unmapped> {
    let is_plain = malformed.headers.iter().all(|(name, _)| name.starts_with("__debezium."));
    if malformed.raw_key().is_none() || !is_plain {
        return Err(Unmapped::other_form("no tombstone of Debezium: it has no key, or other headers"));
    }
    let id = place_id(malformed).map_err(|error| Unmapped::invalid(error.to_string()))?;
    let message = malformed.to_message(id, &format!("{}.tombstone", last_part(&malformed.topic)))?;
    Ok(match key(malformed) {
        Some(key) => message.key(key),
        None => message,
    })
}

/// Returns the ordering key of a record: its key without a schema.
fn key(malformed: &Malformed) -> Option<OrderingKey> {
    let raw = malformed.raw_key()?;
    let wrapped = Object::with("key", &raw, &["payload"]).ok().flatten();
    let json = wrapped.filter(|key| key.all().count() == 2).and_then(|key| key.raw("payload"));
    json.map_or_else(|| ordering_key(&raw), |json| ordering_key(json.as_bytes()))
}

fn last_part(topic: &str) -> &str {
    topic.rsplit('.').next().filter(|part| !part.is_empty()).unwrap_or(topic)
}

/// Returns what an operation did, as a word.
fn word(operation: &str) -> &str {
    match operation {
        "c" => "created",
        "r" => "read",
        "u" => "updated",
        "d" => "deleted",
        "t" => "truncated",
        "m" => "message",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Message;
    use time::macros::datetime;

    fn pair(name: &str, value: &str) -> (String, String) {
        (name.to_owned(), value.to_owned())
    }

    fn record(key: Option<&str>, body: Option<&str>) -> Malformed {
        let mut properties = vec![pair("kafka.timestamp", "2026-11-27T20:00:01Z")];
        if body.is_none() {
            properties.push(pair("kafka.value", "null"));
        }
        Malformed {
            topic: String::from("shop.public.orders"),
            key: key.map(str::to_owned),
            properties,
            broker_notes: vec![pair("kafka.partition", "0"), pair("kafka.offset", "42")],
            payload: Bytes::copy_from_slice(body.unwrap_or_default().as_bytes()),
            ..Malformed::default()
        }
    }

    fn read(malformed: &Malformed) -> Message {
        debezium_change(malformed).unwrap().into()
    }

    const KEY: &str = r#"{"schema":{"type":"struct"},"payload":{"id":7}}"#;

    fn body(operation: &str, lsn: u32, rest: &str) -> String {
        format!(
            r#"{{"before":null,"after":{{"id":7,"total":1.00}},"op":"{operation}","ts_ms":1795809600500,
            "source":{{"version":"2.7","connector":"postgresql","name":"shop","ts_ms":1795809600000,"db":"s",
            "schema":"public","table":"orders","lsn":{lsn}{rest}}}}}"#
        )
    }

    #[test]
    fn a_change_is_read_whole_with_or_without_its_schema() {
        let bare = body("u", 9, "");
        let message = read(&record(Some(KEY), Some(&bare)));
        assert_eq!((message.kind.as_str(), message.source.as_str()), ("orders.updated", "/debezium/shop"));
        assert_eq!(message.id.generated_at(), datetime!(2026-11-27 20:00 UTC));
        assert_eq!(message.key.as_ref().unwrap().as_str(), r#"{"id":7}"#);
        assert!(message.payload == bare.as_bytes() && message.content_type.is_json());
        let wrapped = read(&record(Some(KEY), Some(&format!(r#"{{"schema":{{}},"payload":{bare}}}"#))));
        assert_eq!((wrapped.id, &wrapped.payload), (message.id, &message.payload));
    }

    #[test]
    fn a_change_that_is_sent_again_has_its_id_and_any_other_has_not() {
        let id = |key: Option<&str>, body: &str| read(&record(key, Some(body))).id;
        let first = id(Some(KEY), &body("u", 9, ""));
        let again = body("u", 9, r#","sequence":"[1,2]","snapshot":"last""#).replace("2.7", "3.0");
        assert_eq!(id(Some(KEY), &again), first);
        for (key, other) in [
            (KEY, body("u", 10, "")),
            (KEY, body("d", 9, "")),
            (KEY, body("u", 9, r#","row":1"#)),
            (KEY, body("u", 9, "").replace("1.00", "2.00")),
            ("other", body("u", 9, "")),
        ] {
            assert_ne!(id(Some(key), &other), first, "{key} {other}");
        }
        // Neither what the connector read meanwhile nor what the server adds is a position.
        for (member, other) in [
            (r#""xmin":17"#, r#""xmin":18"#),
            (r#""query":null"#, r#""query":"UPDATE orders""#),
            (r#""redo_sql":null"#, r#""redo_sql":"update orders""#),
            (r#""user_name":"UNKNOWN""#, r#""user_name":"SHOP""#),
            (r#""low_watermark":1,"read_at_timestamp":2"#, r#""low_watermark":3,"read_at_timestamp":4"#),
            (r#""resolved_ts":"1.0""#, r#""resolved_ts":"2.0""#),
        ] {
            let with = |member: &str| id(Some(KEY), &body("u", 9, &format!(",{member}")));
            assert_eq!(with(other), with(member), "{member}");
            assert_eq!(with(other), first, "{member}");
        }
        // Vitess: the positions of other shards are those that the connector happened to read.
        let of_shard = |own: u32, other: u32| {
            let vgtid = format!(
                r#"[{{\"shard\":\"-80\",\"gtid\":\"a:1-{own}\"}},{{\"shard\":\"80-\",\"gtid\":\"b:1-{other}\"}}]"#
            );
            id(Some(KEY), &body("u", 9, &format!(r#","shard":"-80","vgtid":"{vgtid}""#)))
        };
        assert_eq!(of_shard(5, 8), of_shard(5, 7));
        assert_ne!(of_shard(6, 7), of_shard(5, 7));
        // Without a key, rows of one snapshot can be equal in everything but their place.
        let mut elsewhere = record(None, Some(&body("r", 9, "")));
        let here = read(&elsewhere).id;
        elsewhere.broker_notes[1].1 = String::from("43");
        assert_ne!(read(&elsewhere).id, here);
    }

    /// Goal: a snapshot that is repeated is a new reading, as documented; a record that Kafka
    /// has twice is not. Oracle: the ids.
    #[test]
    fn a_row_that_a_snapshot_reads_again_is_another_message() {
        let reading = |at: &str, lsn: u32| {
            let body = body("r", lsn, "").replace("1795809600000", at);
            read(&record(Some(KEY), Some(&body))).id
        };
        let first = reading("1795809600000", 9);
        assert_eq!(reading("1795809600000", 9), first);
        // A snapshot reads at one position; an incremental one has a time for each row.
        assert_ne!(reading("1795809700000", 11), first);
        assert_ne!(reading("1795809700000", 9), first);
    }

    /// Returns the id of a change of MongoDB, whose positions are those of its transactions.
    fn of_document(operation: &str, members: &str, number: u32) -> MessageId {
        let event = format!(
            r#"{{"op":"{operation}",{members},"transaction":{{"id":"s:1","total_order":{number}}},"source":{{"version":"3.7.0","connector":"mongodb","name":"shop","ts_ms":1764273600000,"snapshot":"false","db":"shop","collection":"orders","ord":1,"lsid":"s","txnNumber":1}}}}"#
        );
        read(&record(Some(KEY), Some(&event))).id
    }

    /// Goal: an update of MongoDB that is sent again has its id, although the document has changed
    /// meanwhile, and the connector has numbered it from 1 again; another update of the same
    /// transaction, which has the same position, has not. Oracle: the ids.
    #[test]
    fn an_update_of_a_document_has_the_id_of_its_description() {
        let id = |after: &str, description: &str, number| {
            let members = format!(r#""before":null,"after":{after},"updateDescription":{description}"#);
            of_document("u", &members, number)
        };
        let one = r#"{"updatedFields":"{\"x\": 1}"}"#;
        let two = r#"{"updatedFields":"{\"x\": 2}"}"#;
        assert_eq!(id(r#""{\"x\": 1}""#, one, 4), id(r#""{\"x\": 2}""#, one, 1));
        assert_ne!(id("null", one, 1), id("null", two, 1));
    }

    /// Goal: a deletion or a replacement of MongoDB that is sent again has its id, although the
    /// server has removed the image from before it meanwhile. Oracle: the ids.
    #[test]
    fn a_change_of_a_document_has_its_id_without_the_image_from_before() {
        let id = |operation: &str, before: &str, after: &str| {
            of_document(operation, &format!(r#""before":{before},"after":{after}"#), 1)
        };
        for (operation, after) in [("d", "null"), ("u", r#""{\"x\": 2}""#)] {
            let with_image = id(operation, r#""{\"x\": 1}""#, after);
            assert_eq!(id(operation, "null", after), with_image, "{operation}");
            assert_ne!(id("c", "null", after), with_image, "{operation}");
        }
        assert_ne!(id("u", "null", r#""{\"x\": 2}""#), id("u", "null", r#""{\"x\": 3}""#));
    }

    /// Goal: after a failover of MySQL or MariaDB, the connector finds a transaction by its GTID in
    /// the log of another server, and sends its changes again with other coordinates. Oracle: ids.
    #[test]
    fn a_change_has_its_id_on_every_server_that_has_its_gtid() {
        let id = |body: &str| read(&record(Some(KEY), Some(body))).id;
        let of = |server: &str, gtid: &str| body("u", 9, &format!(r#","row":0,"gtid":{gtid},{server}"#));
        let ours = r#""server_id":1,"file":"mysql-bin.000003","pos":154,"thread":7"#;
        let theirs = r#""server_id":2,"file":"binlog.000001","pos":4711,"thread":null"#;
        for gtid in [r#""3e11fa47-71ca-11e1-9e33-c80aa9429562:23""#, r#""0-1-270""#] {
            let first = id(&of(ours, gtid));
            assert_eq!(id(&of(theirs, gtid)), first);
            for other in [
                of(theirs, &gtid.replace("2", "4")),
                of(theirs, gtid).replace(r#""row":0"#, r#""row":1"#),
                of(theirs, gtid).replace("1.00", "2.00"),
            ] {
                assert_ne!(id(&other), first, "{other}");
            }
            // Equal changes of one transaction, numbered by the connector. Before 3.7, it numbers
            // the rest of a transaction from 1 again when it is restarted in the middle.
            let numbered = |version: &str, place: u32| {
                let transaction = format!(
                    r#""transaction":{{"id":{gtid},"total_order":{place},"data_collection_order":1}},"op""#
                );
                let body = of(theirs, gtid).replace(r#""op""#, &transaction);
                id(&body.replace(r#""version":"2.7""#, &format!(r#""version":"{version}""#)))
            };
            for counts_on in ["3.7.0.Final", "3.10.1.Final", "4.0"] {
                assert_ne!(numbered(counts_on, 1), numbered(counts_on, 3), "{counts_on}");
                assert_eq!(numbered(counts_on, 3), numbered("3.7.0.Alpha1", 3), "{counts_on}");
            }
            for begins_again in ["1.9.7.Final", "2.7", "3.6.1.Final", "3", "x"] {
                assert_eq!(numbered(begins_again, 40_001), first, "{begins_again}");
            }
        }
        // Without a GTID, only the coordinates distinguish the changes of a server.
        for gtid in ["null", r#""""#] {
            assert_ne!(id(&of(theirs, gtid)), id(&of(ours, gtid)));
        }
    }

    #[test]
    fn a_tombstone_is_a_message_of_its_key() {
        let message = read(&record(Some(KEY), None));
        assert_eq!((message.kind.as_str(), message.is_tombstone()), ("orders.tombstone", true));
        assert_eq!(message.key.unwrap().as_str(), r#"{"id":7}"#);
        assert!(debezium_change(&record(None, None)).unwrap_err().is_other_form());
        let mut other = record(Some(KEY), None);
        other.headers = vec![pair("__TypeId__", "x")];
        assert!(debezium_change(&other).unwrap_err().is_other_form());
    }

    #[test]
    fn what_is_no_change_is_left_to_others_and_an_ambiguous_one_is_refused() {
        for body in ["", "{}", r#"{"op":"c"}"#, r#"{"payload":{"op":"c"}}"#, r#"{"id":7,"op":"x"}"#, "[1]"] {
            let error = debezium_change(&record(Some(KEY), Some(body))).unwrap_err();
            assert!(error.is_other_form(), "{body}: {error}");
        }
        // Not a change, so nothing of it is refused here.
        for body in [r#"{"op":"c","op":"d","n":1}"#, r#"{"payload":{"op":1,"op":2}}"#] {
            let error = debezium_change(&record(Some(KEY), Some(body))).unwrap_err();
            assert!(error.is_other_form(), "{body}: {error}");
        }
        let twice = body("c", 9, "").replacen("\"op\"", "\"op\":\"d\",\"op\"", 1);
        let error = debezium_change(&record(Some(KEY), Some(&twice))).unwrap_err();
        assert!(!error.is_other_form() && error.to_string().contains("\"op\""), "{error}");
    }

    #[test]
    fn a_record_of_the_outbox_router_is_its_event() {
        let mut routed = record(Some("7"), Some(r#"{"schema":{"type":"string"},"payload":"{\"order\":7}"}"#));
        routed.topic = String::from("outbox.event.orders");
        assert!(debezium_outbox(&routed).unwrap_err().is_other_form());
        routed.headers = vec![pair("id", "\"17\"")];
        let message = Message::from(debezium_outbox(&routed).unwrap());
        let at = datetime!(2026-11-27 20:00:01 UTC);
        assert_eq!(message.id, MessageId::derived(at, ["outbox.event.orders", "17"]).unwrap());
        assert_eq!((message.kind.as_str(), &message.payload[..]), ("orders", &br#"{"order":7}"#[..]));
        let id = MessageId::new();
        routed.headers = vec![pair("id", &id.to_string()), pair("eventType", "OrderPlaced")];
        routed.properties.push(pair("kafka.value", "null"));
        routed.payload = Bytes::new();
        let message = Message::from(debezium_outbox(&routed).unwrap());
        assert_eq!((message.id, message.kind.as_str(), message.is_tombstone()), (id, "OrderPlaced", true));
    }
}
