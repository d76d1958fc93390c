//! Requests and answers of SQS (AWS JSON 1.0). Pure.

use serde_json::{Value, json};

use crate::clock;
use crate::journal::Passed;

/// The header that names the operation.
pub(super) const TARGET: &str = "x-amz-target";
/// The content type of requests and answers.
pub(super) const CONTENT_TYPE: &str = "application/x-amz-json-1.0";

/// Returns whether an operation has several entries and reports on each of them.
pub(super) fn is_batch(target: &str) -> bool {
    matches!(
        target,
        "AmazonSQS.SendMessageBatch"
            | "AmazonSQS.DeleteMessageBatch"
            | "AmazonSQS.ChangeMessageVisibilityBatch"
    )
}

/// Returns whether an operation sends messages.
pub(super) fn is_send(target: &str) -> bool {
    matches!(target, "AmazonSQS.SendMessageBatch" | "AmazonSQS.SendMessage")
}

/// Removes some entries from a batch request and returns their ids, or `None` for any other
/// request.
pub(super) fn take_entries(request: &mut Value, take: impl FnMut(&str) -> bool) -> Option<Vec<String>> {
    take_out(request, "Entries", take)
}

/// Removes some entries from the successes of an answer and returns their ids.
pub(super) fn take_successes(answer: &mut Value, take: impl FnMut(&str) -> bool) -> Option<Vec<String>> {
    take_out(answer, "Successful", take)
}

fn take_out(value: &mut Value, list: &str, mut take: impl FnMut(&str) -> bool) -> Option<Vec<String>> {
    let entries = value.get_mut(list)?.as_array_mut()?;
    let mut taken = Vec::new();
    entries.retain(|entry| match entry.get("Id").and_then(Value::as_str) {
        Some(id) if take(id) => {
            taken.push(id.to_owned());
            false
        }
        _ => true,
    });
    Some(taken)
}

/// Returns the entries of a batch request, and for each whether the answer reports it as done.
pub(super) fn passed(operation: &str, request: &[u8], answer: &[u8]) -> Vec<Passed> {
    let read = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).unwrap_or_default();
    let (request, answer) = (read(request), read(answer));
    let text = |value: Option<&Value>| value.and_then(Value::as_str).map(str::to_owned);
    let list =
        |value: &Value, name: &str| value.get(name).and_then(Value::as_array).cloned().unwrap_or_default();
    let done: Vec<_> = list(&answer, "Successful").iter().filter_map(|entry| text(entry.get("Id"))).collect();
    let passed = |entry: &Value| {
        let id = text(entry.get("Id"))?;
        let attribute = entry.pointer("/MessageAttributes/ce_id/StringValue");
        let event = || serde_json::from_str::<Value>(entry.get("MessageBody")?.as_str()?).ok();
        Some(Passed {
            at: clock::now(),
            operation: operation.to_owned(),
            message: text(attribute).or_else(|| text(event()?.get("id"))),
            group: text(entry.get("MessageGroupId")),
            is_done: done.contains(&id),
            entry: id,
        })
    };
    list(&request, "Entries").iter().filter_map(passed).collect()
}

/// Returns whether a batch request has entries left.
pub(super) fn has_entries(request: &Value) -> bool {
    request.get("Entries").and_then(Value::as_array).is_some_and(|entries| !entries.is_empty())
}

/// Returns the answer to a batch without entries.
pub(super) fn nothing_done() -> Value {
    json!({ "Successful": [], "Failed": [] })
}

/// Adds failures to an answer.
pub(super) fn fail(answer: &mut Value, ids: &[String]) {
    let failures = ids.iter().map(|id| {
        json!({ "Id": id, "SenderFault": false, "Code": "InternalError", "Message": "the storm says so" })
    });
    match answer.get_mut("Failed").and_then(Value::as_array_mut) {
        Some(failed) => failed.extend(failures),
        None => answer["Failed"] = failures.collect(),
    }
}

/// Returns the body of an error answer.
pub(super) fn error(kind: &str) -> Value {
    json!({ "__type": format!("com.amazonaws.sqs#{kind}"), "message": "the storm says so" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_that_are_taken_out_fail_and_the_others_stay() {
        let mut request =
            json!({ "QueueUrl": "q", "Entries": [{ "Id": "0" }, { "Id": "1" }, { "Id": "2" }] });
        let taken = take_entries(&mut request, |id| id != "1").unwrap();
        assert_eq!(taken, ["0", "2"]);
        assert_eq!(request["Entries"], json!([{ "Id": "1" }]));
        assert!(has_entries(&request));
        let mut answer = json!({ "Successful": [{ "Id": "1", "MessageId": "m" }] });
        fail(&mut answer, &taken);
        assert_eq!(answer["Failed"][1]["Id"], "2");
        assert_eq!(answer["Failed"].as_array().unwrap().len(), 2);
        assert_eq!(take_successes(&mut answer, |_| true).unwrap(), ["1"]);
        fail(&mut answer, &["1".to_owned()]);
        assert_eq!(answer["Failed"].as_array().unwrap().len(), 3);
    }

    #[test]
    fn what_is_no_batch_is_left_alone() {
        let mut request = json!({ "QueueUrl": "q" });
        assert_eq!(take_entries(&mut request, |_| true), None);
        assert!(!has_entries(&request));
        assert!(is_batch("AmazonSQS.SendMessageBatch"));
        assert!(!is_batch("AmazonSQS.ReceiveMessage"));
    }
}
