//! Runs the program on a terminal of the test's own.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::process::Stdio;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::relay_process::command;
use crate::trial::Failure;

/// Runs a command of the program to its end, with its standard output on a terminal of this width.
/// A terminal whose size was never set has a width of 0. Returns the terminal's content.
///
/// # Errors
/// The program could not be built or started, or there is no terminal.
pub async fn relay_on_terminal(columns: u16, arguments: &[&str]) -> Result<String, Failure> {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    grantpt(&master)?;
    unlockpt(&master)?;
    let name = ptsname(&master, Vec::new())?;
    let slave = File::options().read(true).write(true).open(OsStr::from_bytes(name.to_bytes()))?;
    let rows = if columns == 0 { 0 } else { 24 };
    tcsetwinsize(&slave, Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 })?;
    let mut child = command(arguments)?.stdin(Stdio::null()).stdout(slave).stderr(Stdio::null()).spawn()?;
    let shown = tokio::task::spawn_blocking(move || {
        let (mut master, mut shown, mut part) = (File::from(master), Vec::new(), [0; 4096]);
        // Reading fails after the last process has left the terminal.
        while let Ok(count @ 1..) = master.read(&mut part) {
            shown.extend_from_slice(&part[..count]);
        }
        shown
    });
    child.wait().await?;
    Ok(String::from_utf8(shown.await?)?.replace("\r\n", "\n"))
}
