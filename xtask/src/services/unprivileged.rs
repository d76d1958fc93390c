//! Servers that refuse to be run by root: the user that they get instead, and a folder that this
//! user may enter.

use super::{
    fault::{Doing, Fault},
    home::Home,
    process::{is_root, run},
};
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

/// Returns the service's home, unless we are root and the server's user cannot get there.
pub(crate) fn folder(home: &Home) -> PathBuf {
    if !is_root() || home.dir.ancestors().all(may_pass) {
        return home.dir.clone();
    }
    // Named after the home, so that every checkout has its own.
    let name = home.dir.display().to_string().replace('/', "-");
    PathBuf::from(format!("/var/tmp/outbox{name}"))
}

/// Whether any user may walk through this folder. A missing folder counts, because we will make it.
fn may_pass(folder: &Path) -> bool {
    fs::metadata(folder).is_ok_and(|metadata| metadata.permissions().mode() & 0o001 != 0) || !folder.exists()
}

/// Returns the user for the server when we are root, which PostgreSQL refuses to be.
pub(crate) fn owner() -> Result<Option<(u32, u32)>, Fault> {
    if !is_root() {
        return Ok(None);
    }
    let passwd = fs::read_to_string("/etc/passwd").doing("cannot read /etc/passwd")?;
    if let Some(ids) = user(&passwd, "postgres") {
        return Ok(Some(ids));
    }
    run(Command::new("useradd").args(["--system", "--no-create-home", "postgres"]), "useradd postgres")?;
    let passwd = fs::read_to_string("/etc/passwd").doing("cannot read /etc/passwd")?;
    user(&passwd, "postgres")
        .map(Some)
        .ok_or_else(|| Fault::Failed("no user postgres to run the server".to_owned()))
}

fn user(passwd: &str, name: &str) -> Option<(u32, u32)> {
    let line = passwd.lines().find(|line| line.split(':').next() == Some(name))?;
    let mut fields = line.split(':').skip(2);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_come_from_the_users_own_line() {
        let passwd =
            "root:x:0:0:root:/root:/bin/bash\npostgres:x:105:110:,,,:/var/lib/postgresql:/bin/bash\n";
        assert_eq!(user(passwd, "postgres"), Some((105, 110)));
        assert_eq!(user(passwd, "post"), None);
    }

    #[test]
    fn a_private_folder_may_not_be_passed() {
        let folder = std::env::temp_dir().join(format!("xtask-pass-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("create");
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).expect("chmod");
        assert!(!may_pass(&folder));
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).expect("chmod");
        assert!(may_pass(&folder));
        fs::remove_dir(&folder).expect("remove");
        assert!(may_pass(&folder), "not there yet");
    }
}
