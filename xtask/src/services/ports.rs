//! Whether a port is free, and if not, which process has it.

use super::{Name, Secure, fault::Fault};
use std::{
    fs,
    io::ErrorKind,
    net::{Ipv4Addr, TcpListener},
    thread,
    time::{Duration, Instant},
};

/// How long a stopped process may keep its port: Erlang's name server reports its end before it has
/// ended.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(50);

/// Fails when another process keeps listening on one of the service's ports.
pub(crate) fn require_free(name: Name) -> Result<(), Fault> {
    let service = name.service();
    for port in std::iter::once(service.client_port()).chain(service.other_ports()) {
        require_one_free(name, port.variable, port.number()?)?;
    }
    for Secure { port_variable, port, .. } in service.secure()? {
        if let Some(variable) = port_variable {
            require_one_free(name, variable, port)?;
        }
    }
    Ok(())
}

fn require_one_free(name: Name, variable: &str, number: u16) -> Result<(), Fault> {
    let deadline = Instant::now() + PATIENCE;
    let error = loop {
        match TcpListener::bind((Ipv4Addr::LOCALHOST, number)) {
            Ok(_) => return Ok(()),
            Err(error) if error.kind() != ErrorKind::AddrInUse || Instant::now() >= deadline => break error,
            Err(_) => thread::sleep(PAUSE),
        }
    };
    let owner = owner(number).map(|owner| format!(" by {owner}")).unwrap_or_default();
    Err(Fault::Failed(format!(
        "port {number} is taken{owner} ({error}): stop that process, or move {name} with {variable}=<free port>"
    )))
}

/// Returns the process that listens on a port, as far as we may look.
fn owner(port: u16) -> Option<String> {
    let inodes: Vec<String> = ["/proc/net/tcp", "/proc/net/tcp6"]
        .iter()
        .filter_map(|table| fs::read_to_string(table).ok())
        .flat_map(|table| listeners(&table, port))
        .collect();
    let processes = fs::read_dir("/proc").ok()?;
    for entry in processes.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let Ok(files) = fs::read_dir(entry.path().join("fd")) else { continue };
        let holds = files.flatten().filter_map(|file| fs::read_link(file.path()).ok()).any(|target| {
            let target = target.to_string_lossy();
            inodes.iter().any(|inode| *target == format!("socket:[{inode}]"))
        });
        if holds {
            let command = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
            return Some(format!("process {pid} ({})", command.trim()));
        }
    }
    None
}

/// Returns the inodes of the sockets that listen on a port, from the kernel's table.
fn listeners(table: &str, port: u16) -> Vec<String> {
    const LISTEN: &str = "0A";
    table
        .lines()
        .skip(1)
        .filter_map(|line| {
            let fields: Vec<&str> = line.split_ascii_whitespace().collect();
            let (_, hex) = fields.get(1)?.rsplit_once(':')?;
            let listens = *fields.get(3)? == LISTEN && u16::from_str_radix(hex, 16).ok()? == port;
            listens.then(|| fields.get(9).map(|inode| (*inode).to_owned()))?
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:3C48 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0 100 0 0 10 0
   1: 0100007F:3C48 0100007F:9999 01 00000000:00000000 00:00000000 00000000     0        0 4712 1 0 100 0 0 10 0";

    #[test]
    fn only_listening_sockets_of_the_port_count() {
        assert_eq!(listeners(TABLE, 0x3C48), ["4711"]);
        assert!(listeners(TABLE, 0x9999).is_empty());
    }

    #[test]
    fn the_owner_of_a_port_is_named() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind");
        let port = listener.local_addr().expect("address").port();
        let owner = owner(port).expect("owner");
        assert!(owner.contains(&format!("process {}", std::process::id())), "{owner}");
    }
}
