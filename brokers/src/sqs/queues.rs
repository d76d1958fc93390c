//! Maps topics to queues, and looks up the queues' URLs.

use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;

use aws_sdk_sqs::Client;

use super::config::{Config, is_queue_name, is_url};
use super::fault::Failure;

/// Maximum number of URLs that are remembered. With more queues, some are looked up again.
const URLS_MAX: usize = 10_000;

/// The queues of a session; each URL is looked up once.
#[derive(Debug)]
pub(super) struct Queues {
    by_topic: BTreeMap<String, String>,
    /// The account of the queues that are given by name.
    owner: Option<String>,
    urls: Mutex<HashMap<String, String>>,
}

impl Queues {
    pub(super) fn of_config(config: &Config) -> Self {
        Self {
            by_topic: config.queues.clone(),
            owner: config.queue_owner.clone(),
            urls: Mutex::new(HashMap::new()),
        }
    }

    /// Returns the name or URL of the queue of a topic.
    pub(super) fn of<'a>(&'a self, topic: &'a str) -> &'a str {
        self.by_topic.get(topic).map_or(topic, String::as_str)
    }

    /// Returns the URL of a queue.
    pub(super) async fn url(&self, client: &Client, queue: &str) -> Result<String, Failure> {
        if is_url(queue) {
            return Ok(queue.to_owned());
        }
        if let Some(url) = self.lock().get(queue) {
            return Ok(url.clone());
        }
        let url = queue_url(client, queue, self.owner()).await?;
        self.remember(queue, &url);
        Ok(url)
    }

    /// Returns the configured account of the queues that are given by name.
    pub(super) fn owner(&self) -> Option<&str> {
        self.owner.as_deref()
    }

    fn remember(&self, queue: &str, url: &str) {
        let mut urls = self.lock();
        if urls.len() >= URLS_MAX {
            urls.clear();
        }
        urls.insert(queue.to_owned(), url.to_owned());
    }

    /// Makes the next call look up the URL again: the queue was deleted, and may be recreated under
    /// another URL.
    pub(super) fn forget(&self, queue: &str) {
        self.lock().remove(queue);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, String>> {
        // A map of texts is consistent even if another thread panicked while it held the lock.
        self.urls.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// Asks SQS for the URL of a queue, which belongs to the account of the credentials unless an
/// owner is given.
pub(super) async fn queue_url(client: &Client, queue: &str, owner: Option<&str>) -> Result<String, Failure> {
    if !is_queue_name(queue) {
        let problem = "cannot be the name of a queue: it has 1 to 80 letters, digits, - and _";
        return Err(Failure::of_code("QueueDoesNotExist", &format!("{queue:?} {problem}"), true));
    }
    let found = client.get_queue_url().queue_name(queue);
    let found = found.set_queue_owner_aws_account_id(owner.map(str::to_owned)).send().await;
    let found = found.map_err(|error| Failure::of_request(&error))?;
    found.queue_url.ok_or_else(|| Failure::of_code("InternalError", "the answer has no queue URL", false))
}

/// Returns whether a queue, given by name or URL, is a FIFO queue.
pub(super) fn is_fifo(queue: &str) -> bool {
    queue.ends_with(".fifo")
}

/// Returns the name of a queue that is given by name or URL.
pub(super) fn queue_name(queue: &str) -> &str {
    if is_url(queue) { queue.rsplit('/').next().unwrap_or(queue) } else { queue }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_is_its_queue_unless_another_one_is_named() {
        let url = "https://sqs.eu-central-1.amazonaws.com/1/orders.fifo";
        let by_topic = BTreeMap::from([(String::from("order.placed"), String::from(url))]);
        let queues = Queues::of_config(&Config::default().queues(by_topic));
        assert_eq!((queues.of("order.placed"), queues.of("bills")), (url, "bills"));
        assert!(is_fifo(url) && !is_fifo("bills"));
        assert_eq!((queue_name(url), queue_name("bills")), ("orders.fifo", "bills"));
    }

    #[test]
    fn the_urls_that_are_remembered_are_bounded() {
        let queues = Queues::of_config(&Config::default());
        for number in 0..3 * URLS_MAX {
            queues.remember(&format!("orders-{number}"), "https://sqs/1/orders");
            assert!(queues.lock().len() <= URLS_MAX);
        }
    }
}
