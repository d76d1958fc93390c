//! Networks as settings name them. Pure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// One network, or one address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    base: IpAddr,
    prefix: u8,
}

impl Network {
    /// Creates a network. Bits of the base after the prefix are ignored.
    #[must_use]
    pub const fn new(base: IpAddr, prefix: u8) -> Self {
        Self { base, prefix }
    }

    /// Reads a network as `10.1.0.0/16`, or an address as `::1`. Returns `None` for any other text,
    /// and for a base with bits after the prefix, which is probably a mistake.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let whole = |base: &IpAddr| if base.is_ipv4() { 32 } else { 128 };
        let Some((base, prefix)) = text.split_once('/') else {
            let base = text.parse::<IpAddr>().ok()?.to_canonical();
            return Some(Self { prefix: whole(&base), base });
        };
        let base: IpAddr = base.parse().ok()?;
        let is_number = prefix.bytes().all(|digit| digit.is_ascii_digit());
        let prefix = prefix.parse().ok().filter(|prefix| is_number && *prefix <= whole(&base))?;
        let network = Self { base, prefix };
        network.is_exact().then_some(network)
    }

    fn is_exact(self) -> bool {
        match self.base {
            IpAddr::V4(base) => masked_v4(base, self.prefix) == base.to_bits(),
            IpAddr::V6(base) => masked_v6(base, self.prefix) == base.to_bits(),
        }
    }

    /// Returns whether it contains every address of its family.
    #[must_use]
    pub fn is_everything(self) -> bool {
        self.prefix == 0
    }

    /// Returns whether it contains this address. An IPv4 address that is written as an IPv6 address
    /// is a different one: make it canonical first.
    #[must_use]
    pub fn contains(self, address: IpAddr) -> bool {
        match (self.base, address) {
            (IpAddr::V4(base), IpAddr::V4(address)) => {
                masked_v4(address, self.prefix) == masked_v4(base, self.prefix)
            }
            (IpAddr::V6(base), IpAddr::V6(address)) => {
                masked_v6(address, self.prefix) == masked_v6(base, self.prefix)
            }
            _ => false,
        }
    }
}

fn masked_v4(address: Ipv4Addr, prefix: u8) -> u32 {
    address.to_bits() & u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0)
}

fn masked_v6(address: Ipv6Addr, prefix: u8) -> u128 {
    address.to_bits() & u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_has_its_addresses_and_no_others() {
        for (network, inside, outside) in [
            ("10.1.0.0/16", "10.1.255.255", "10.2.0.0"),
            ("10.1.2.3", "10.1.2.3", "10.1.2.4"),
            ("::1", "::1", "::2"),
            ("fd00::/8", "fdff::1", "fe00::1"),
            ("0.0.0.0/0", "203.0.113.1", "::1"),
        ] {
            let network = Network::parse(network).unwrap();
            assert!(network.contains(inside.parse().unwrap()), "{network:?}");
            assert!(!network.contains(outside.parse().unwrap()), "{network:?}");
        }
        for text in ["", "10.1.0.0/33", "10.1.0.1/16", "10.1.0.0/+8", "proxy", "::1/129", "10.1.0.0/"] {
            assert_eq!(Network::parse(text), None, "{text}");
        }
        assert!(Network::parse("::/0").unwrap().is_everything());
    }
}
