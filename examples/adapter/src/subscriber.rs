//! Opening of consuming sessions.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read as _};
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use message::{Subscriber, Subscription, SubscriptionError};

use crate::subscription::DirectorySubscription;
use crate::{tail, topic};

/// Subscribes to one topic of a directory, as the only member of a group.
#[derive(Debug, Clone)]
pub struct DirectorySubscriber {
    directory: PathBuf,
    group: String,
    topic: String,
}

impl DirectorySubscriber {
    /// Makes a subscriber. Topic and group are checked when a session is opened. A new group begins
    /// with the oldest message.
    #[must_use]
    pub fn new(directory: impl Into<PathBuf>, group: impl Into<String>, topic: impl Into<String>) -> Self {
        Self { directory: directory.into(), group: group.into(), topic: topic.into() }
    }

    fn open(&self) -> Result<DirectorySubscription, SubscriptionError> {
        let path = topic::path(&self.directory, &self.topic).map_err(SubscriptionError::operator)?;
        let group = topic::group_path(&self.directory, &self.topic, &self.group)
            .map_err(SubscriptionError::operator)?;
        let log = File::open(&path).map_err(|error| refused(&path, error))?;
        let mut place = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&group);
        let place = place.as_mut().map_err(|error| refused(&group, io::Error::from(error.kind())))?;
        match place.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let reason =
                    format!("the group {} has another member; a directory takes one at a time", self.group);
                return Err(SubscriptionError::lost(reason));
            }
            Err(TryLockError::Error(error)) => return Err(refused(&group, error)),
        }
        let begin = settled(place).map_err(|error| refused(&group, error))?;
        let begun = log.try_clone().and_then(|log| tail::follow(log, begin));
        let lines = begun.map_err(|error| refused(&path, error))?;
        let place = place.try_clone().map_err(|error| refused(&group, error))?;
        Ok(DirectorySubscription::new(self.topic.clone(), log, place, lines, begin))
    }
}

#[async_trait]
impl Subscriber for DirectorySubscriber {
    async fn subscribe(&self) -> Result<Box<dyn Subscription>, SubscriptionError> {
        Ok(Box::new(self.open()?))
    }
}

/// Reads the position up to which everything is settled; 0 for a new group.
fn settled(mut file: &File) -> io::Result<u64> {
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    match text.trim() {
        "" => Ok(0),
        place => place.parse().map_err(|_| {
            io::Error::new(
                ErrorKind::InvalidData,
                format!("{place:?} is not a place in a topic: write a number of bytes"),
            )
        }),
    }
}

fn refused(path: &Path, error: io::Error) -> SubscriptionError {
    let reason = format!("cannot use {}: {error}", path.display());
    match error.kind() {
        ErrorKind::NotFound | ErrorKind::PermissionDenied | ErrorKind::InvalidData => {
            SubscriptionError::operator(reason).with_source(error)
        }
        _ => SubscriptionError::lost(reason).with_source(error),
    }
}
