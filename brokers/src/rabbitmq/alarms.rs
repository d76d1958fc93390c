//! Alarms of the servers, during which the whole cluster accepts no messages.

use serde::Deserialize;

/// A server, as the management API shows it.
#[derive(Deserialize)]
pub(super) struct Node {
    name: String,
    /// `false`, or missing, for one that is down.
    #[serde(default)]
    mem_alarm: bool,
    #[serde(default)]
    disk_free_alarm: bool,
}

/// The text that is reported while the broker blocks publishers.
pub(super) const BLOCKED: &str = "rabbitmq blocks publishers (memory or disk alarm)";

/// Names each alarm with its server.
pub(super) fn alarms(nodes: &[Node]) -> Vec<String> {
    let of = |node: &Node| {
        let all = [("memory", node.mem_alarm), ("disk", node.disk_free_alarm)];
        let raised = all.into_iter().filter(|(_, is_raised)| *is_raised);
        raised.map(|(kind, _)| format!("{}: {kind} alarm", node.name)).collect::<Vec<_>>()
    };
    nodes.iter().flat_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_alarm_is_named_with_its_server() {
        let nodes: Vec<Node> = serde_json::from_value(serde_json::json!([
            {"name": "rabbit@a", "running": true, "mem_alarm": true, "disk_free_alarm": true},
            {"name": "rabbit@b", "running": true, "mem_alarm": false, "disk_free_alarm": false},
            {"name": "rabbit@c", "running": false},
        ]))
        .unwrap();
        assert_eq!(alarms(&nodes), ["rabbit@a: memory alarm", "rabbit@a: disk alarm"]);
    }
}
