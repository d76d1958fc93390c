//! A log with scripted answers, for tests of code that uses a log.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use message::MessageId;

use crate::cursor::{Cursor, Difference, Mark};
use crate::entry::{EntryId, Page, PageLimit};
use crate::error::LogError;
use crate::exception::{ExceptionChange, StuckPage};
use crate::lease::{Acquired, Fenced, Lease, OtherHolder, RelayName};
use crate::queue::{DueKind, DuePage, DuePosition, HeldAsk, HeldPage, HeldQueues, QueueName};
use crate::store::{CheckpointStore, LogReader, LogStore};

/// A log whose readers and checkpoint stores all answer by one script.
#[derive(Debug)]
pub struct ScriptedLog<S>(pub Arc<S>);

impl<S> ScriptedLog<S> {
    fn share(&self) -> Box<Self> {
        Box::new(Self(Arc::clone(&self.0)))
    }
}

#[async_trait]
impl<S: LogScript> LogStore for ScriptedLog<S> {
    fn origin(&self) -> &str {
        "script"
    }

    async fn reader(&self, _: &RelayName) -> Result<Box<dyn LogReader>, LogError> {
        self.0.reader().await?;
        Ok(self.share())
    }

    async fn checkpoint_store(&self, _: &RelayName, _: &str) -> Result<Box<dyn CheckpointStore>, LogError> {
        Ok(self.share())
    }

    async fn cause_of(&self, error: &LogError) -> Option<String> {
        self.0.cause_of(error)
    }
}

/// Defines [`LogScript`] with the answer of each method, and the sessions that ask for these
/// answers.
macro_rules! script {
    ($($asked:ident {
        $($name:ident($($given:ident: $type:ty),*) -> $answer:ty = $default:expr;)*
    })*) => {
        /// The answers of a [`ScriptedLog`]. Those that a test leaves out are the answers of an
        /// empty log whose lease is free.
        #[async_trait]
        pub trait LogScript: Send + Sync + 'static {
            /// Decides whether a session for reading can be opened.
            async fn reader(&self) -> Result<(), LogError> {
                Ok(())
            }

            /// Answers [`LogStore::cause_of`].
            fn cause_of(&self, error: &LogError) -> Option<String> {
                let _ = error;
                None
            }

            $($(
                #[doc = concat!("Answers [`", stringify!($asked), "::", stringify!($name), "`].")]
                #[allow(unused_variables, reason = "a default answer may depend on nothing")]
                async fn $name(&self $(, $given: $type)*) -> Result<$answer, LogError> {
                    Ok($default)
                }
            )*)*
        }

        $(
            #[async_trait]
            impl<S: LogScript> $asked for ScriptedLog<S> {
                $(async fn $name(&mut self $(, $given: $type)*) -> Result<$answer, LogError> {
                    self.0.$name($($given),*).await
                })*
            }
        )*
    };
}

script! {
    LogReader {
        begin() -> () = ();
        next_difference(base: &Mark) -> Option<Difference> = None;
        read_page(difference: &Difference, after: EntryId, limit: PageLimit) -> Page =
            Page { entries: Vec::new(), exhausted: true };
        read_due(kind: DueKind, after: Option<DuePosition>, limit: PageLimit) -> DuePage =
            DuePage { exceptions: Vec::new(), position: None, exhausted: true, next_in: None };
        read_held(asks: &[HeldAsk], limit: PageLimit) -> Vec<HeldPage> =
            asks.iter().map(|_| HeldPage { exceptions: Vec::new(), exhausted: true }).collect();
        held_queues(after: Option<&QueueName>, queues_max: usize) -> HeldQueues =
            HeldQueues { queues: Vec::new(), exhausted: true };
        stuck(after: EntryId, walked_max: usize, dead_blocks: bool) -> StuckPage = StuckPage::default();
    }
    CheckpointStore {
        other_holder() -> Option<OtherHolder> = None;
        acquire(ttl: Duration) -> Acquired = {
            let lease = Lease { epoch: 1, ttl };
            Acquired::Granted { lease, cursor: Cursor::at(Mark::new("0")), taken_over_from: None }
        };
        renew(epoch: i64, ttl: Duration) -> Fenced = Fenced::Held;
        checkpoint(epoch: i64, cursor: &Cursor, changes: &[ExceptionChange]) -> Fenced = Fenced::Held;
        doubt(cursor: &Cursor, last_read: Option<(EntryId, MessageId)>) -> Option<String> = None;
        release(epoch: i64) -> Fenced = Fenced::Held;
    }
}
