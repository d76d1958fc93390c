//! The wall clock of one process jumps, but its monotonic clock does not. This needs libfaketime, a
//! library that replaces the system's answer when the process asks for the time.

use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use rand::Rng as _;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;

use super::{Fault, FaultKind, Injected, seconds};
use crate::Failure;
use crate::stage::{Signal, Stage};

/// Variable with the path of the library. `cargo xtask services faketime` prints it.
pub const LIBRARY: &str = "OUTBOX_FAKETIME";

/// The fault's name.
pub(crate) const NAME: &str = "clock-jump";

/// Returns the maximum jump of a clock, in either direction, in a storm of this length. It is
/// longer than any lease, and shorter than the inbox's limit for messages from the future. A short
/// storm has short jumps, because the storm must wait for messages that a producer schedules by a
/// clock that is ahead.
pub(crate) fn jump_max(length: Duration) -> Duration {
    length.clamp(Duration::from_secs(20), Duration::from_secs(240))
}

/// A fault that makes the wall clock of a running process jump, and jump back at the end. The
/// process is chosen at random.
#[derive(Debug)]
pub struct ClockJump {
    library: PathBuf,
    jumped: Option<PathBuf>,
}

impl ClockJump {
    /// Creates the fault with this library.
    #[must_use]
    pub fn new(library: PathBuf) -> Self {
        Self { library, jumped: None }
    }

    /// Creates the fault with the library that the environment names.
    ///
    /// # Errors
    /// The environment names no library, or it is not a file. The text names the remedy.
    pub fn from_environment() -> Result<Self, String> {
        match std::env::var_os(LIBRARY).map(PathBuf::from) {
            Some(library) if library.is_file() => Ok(Self::new(library)),
            Some(library) => Err(format!("{LIBRARY}={} is not a file", library.display())),
            None => Err(format!("{LIBRARY} is not set; `cargo xtask services faketime` prints its value")),
        }
    }

    /// Returns the variables of a process whose wall clock is off by the number of seconds in the
    /// file.
    fn variables(&self, file: &Path) -> [(&'static str, String); 4] {
        [
            ("LD_PRELOAD", self.library.display().to_string()),
            ("FAKETIME_TIMESTAMP_FILE", file.display().to_string()),
            // The library reads the file every second, so the clock jumps while the process runs.
            ("FAKETIME_CACHE_DURATION", "1".to_owned()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
        ]
    }
}

#[async_trait]
impl Fault<Stage> for ClockJump {
    fn kind(&self) -> FaultKind {
        FaultKind::new(NAME).lasts(seconds(5)..=seconds(20))
    }

    async fn inject(&mut self, stage: &Stage, rng: &mut StdRng) -> Result<Injected, Failure> {
        let names = stage.processes.names();
        let name = names.choose(rng).ok_or("there is no process")?.clone();
        let jump = rng.random_range(1..=jump_max(stage.length).as_secs().cast_signed())
            * if rng.random() { 1 } else { -1 };
        let file = stage.folder.join(format!("clock-{name}"));
        write(&file, 0).await?;
        for (variable, value) in self.variables(&file) {
            stage.processes.set_for_next_start(&name, variable, &value)?;
        }
        self.jumped = Some(file.clone());
        let before = stage.processes.starts(&name);
        stage.processes.signal(&name, Signal::KILL)?;
        let began = async {
            while stage.processes.starts(&name) == before {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            // The process briefly runs at the right time, so that its clock jumps while it runs.
            tokio::time::sleep(Duration::from_millis(1_500)).await;
        };
        tokio::time::timeout(seconds(5), began).await.map_err(|_| format!("{name} does not start"))?;
        write(&file, jump).await?;
        Ok(Injected::new(name, format!("{jump:+} s")))
    }

    async fn heal(&mut self, _stage: &Stage) -> Result<(), Failure> {
        if let Some(file) = &self.jumped {
            write(file, 0).await?;
        }
        self.jumped = None;
        Ok(())
    }
}

async fn write(file: &Path, jump: i64) -> Result<(), Failure> {
    // The file is written under another name and renamed, so the process never reads half a file.
    let aside = file.with_extension("new");
    tokio::fs::write(&aside, format!("{jump:+}\n")).await?;
    tokio::fs::rename(&aside, file).await?;
    Ok(())
}
