//! Checks of HTTP endpoints. Pure.

use brokers::http::{Config, EndpointFacts};
use brokers::{BrokerFacts, Inspected};

use super::report::Finding;

/// Returns the findings of all checks of the endpoints of topics.
#[must_use]
pub(crate) fn check(facts: &BrokerFacts<EndpointFacts>, config: &Config) -> Vec<Finding> {
    let mut findings = Vec::new();
    for Inspected { topic, facts } in &facts.topics {
        let subject = format!("topic {topic}");
        match facts {
            Ok(facts) => {
                let measured = format!("{} accepts connections", facts.endpoint);
                findings.push(Finding::pass("endpoint", subject.clone(), measured));
                findings.push(signature(&subject, facts));
            }
            Err(error) => {
                let down = error.fault.is_temporary();
                let remedy = error.remedy().unwrap_or("correct the URL of the endpoint in [pipeline.http]");
                let finding = Finding::fail("endpoint", subject, error.reason.clone(), remedy);
                findings.push(finding.because_unavailable(down));
            }
        }
    }
    if config.names_endpoints() {
        let measured = format!("messages name their endpoints, at {} allowed hosts", config.hosts.len());
        findings.push(Finding::pass("endpoint", "messages", measured));
    }
    findings
}

fn signature(subject: &str, facts: &EndpointFacts) -> Finding {
    match &facts.secrets {
        Ok(0) => {
            let remedy = "a receiver cannot tell the relay from others: set secret_files";
            Finding::warn("signature", subject, "requests are not signed", remedy)
        }
        Ok(1) => Finding::pass("signature", subject, "requests are signed with one secret"),
        Ok(count) => Finding::pass("signature", subject, format!("requests are signed with {count} secrets")),
        Err(problem) => {
            let remedy = "its messages wait: write whsec_ and 24 to 64 bytes in base64 into the file";
            Finding::fail("signature", subject, problem.clone(), remedy)
        }
    }
}

#[cfg(test)]
mod tests {
    use brokers::InspectError;

    use super::*;
    use crate::doctor::report::CheckState;

    fn states(
        facts: Result<EndpointFacts, InspectError>,
        config: &Config,
    ) -> Vec<(&'static str, CheckState)> {
        let topics = vec![Inspected { topic: String::from("orders"), facts }];
        let facts = BrokerFacts { version: None, nodes: None, clock: None, alarms: None, topics };
        check(&facts, config).into_iter().map(|finding| (finding.check, finding.state)).collect()
    }

    #[test]
    fn an_endpoint_is_reached_and_its_requests_are_signed() {
        use CheckState::{Fail, Pass, Warn};
        let config = Config::new("https://a.example");
        let endpoint = |secrets| EndpointFacts {
            endpoint: String::from("https://a.example"),
            is_encrypted: true,
            secrets,
        };
        assert_eq!(states(Ok(endpoint(Ok(1))), &config), [("endpoint", Pass), ("signature", Pass)]);
        assert_eq!(states(Ok(endpoint(Ok(0))), &config), [("endpoint", Pass), ("signature", Warn)]);
        let unreadable = Ok(endpoint(Err(String::from("no such file"))));
        assert_eq!(states(unreadable, &config), [("endpoint", Pass), ("signature", Fail)]);
        let away = InspectError { fault: message::Fault::Broker, reason: String::from("away; look") };
        assert_eq!(states(Err(away), &config), [("endpoint", Fail)]);
    }
}
