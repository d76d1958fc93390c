//! Waiting for a command that may never end.

use std::{
    process::{Child, ExitStatus},
    thread,
    time::{Duration, Instant},
};

/// Waits for a child. If it takes longer than `patience`, kills it and returns `None` as status.
pub(crate) fn wait(mut child: Child, patience: Duration) -> Result<Option<ExitStatus>, String> {
    let begun = Instant::now();
    let failed = |error: std::io::Error| format!("cannot wait for a command: {error}");
    loop {
        if let Some(status) = child.try_wait().map_err(failed)? {
            return Ok(Some(status));
        }
        if begun.elapsed() > patience {
            child.kill().and_then(|()| child.wait()).map_err(failed)?;
            return Ok(None);
        }
        thread::sleep(Duration::from_millis(100));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_child_that_takes_too_long_is_ended() {
        let sleeping = Command::new("sleep").arg("60").spawn().expect("sleep");
        assert_eq!(wait(sleeping, Duration::ZERO).expect("waited"), None);
        let quick = Command::new("false").spawn().expect("false");
        assert_eq!(
            wait(quick, Duration::from_secs(60)).expect("waited").and_then(|status| status.code()),
            Some(1)
        );
    }
}
