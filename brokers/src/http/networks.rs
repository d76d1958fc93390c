//! Decides to which addresses a request may go. Pure.
//!
//! A URL from a message, or a name whose record changes, must not lead a relay to services that
//! trust its network: its own machine, private networks, or the metadata of a cloud. So the check
//! is on the address that the name resolved to, and the connection goes to exactly that address.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::network::Network;

const fn v4(base: [u8; 4], prefix: u8) -> Network {
    Network::new(IpAddr::V4(Ipv4Addr::from_octets(base)), prefix)
}

const fn v6(base: [u16; 3], prefix: u8) -> Network {
    let [a, b, c] = base;
    Network::new(IpAddr::V6(Ipv6Addr::new(a, b, c, 0, 0, 0, 0, 0)), prefix)
}

/// Networks that are not the public internet (IANA special-purpose address registries).
const SPECIAL_V4: [Network; 14] = [
    v4([0, 0, 0, 0], 8),
    v4([10, 0, 0, 0], 8),
    v4([100, 64, 0, 0], 10),
    v4([127, 0, 0, 0], 8),
    v4([169, 254, 0, 0], 16),
    v4([172, 16, 0, 0], 12),
    v4([192, 0, 0, 0], 24),
    v4([192, 0, 2, 0], 24),
    v4([192, 88, 99, 0], 24),
    v4([192, 168, 0, 0], 16),
    v4([198, 18, 0, 0], 15),
    v4([198, 51, 100, 0], 24),
    v4([203, 0, 113, 0], 24),
    // Multicast, reserved, broadcast.
    v4([224, 0, 0, 0], 3),
];

/// The only global unicast addresses that are assigned.
const GLOBAL_V6: Network = v6([0x2000, 0, 0], 3);
/// Translates to IPv4 (RFC 6052): the last 32 bits are the address.
const NAT64: Network = v6([0x64, 0xff9b, 0], 96);
/// Tunnels to IPv4 (RFC 3056): bits 16 to 47 are the address.
const SIX_TO_FOUR: Network = v6([0x2002, 0, 0], 16);
/// Within the global addresses: protocols (Teredo, ORCHID and others), documentation.
const SPECIAL_V6: [Network; 3] = [v6([0x2001, 0, 0], 23), v6([0x2001, 0xdb8, 0], 32), v6([0x3fff, 0, 0], 20)];

/// Networks besides the public internet to which requests may go.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Networks(Vec<Network>);

impl Networks {
    /// Reads networks as `10.1.0.0/16` or `::1`.
    ///
    /// # Errors
    /// The first text that is not a network.
    pub(super) fn parse(texts: &[String]) -> Result<Self, &str> {
        let parsed = texts.iter().map(|text| Network::parse(text).ok_or(text.as_str()));
        parsed.collect::<Result<_, _>>().map(Self)
    }

    /// Returns whether a request may go to this address.
    pub(super) fn allow(&self, address: IpAddr) -> bool {
        // An IPv4-mapped IPv6 address reaches the IPv4 address.
        let address = address.to_canonical();
        is_public(address) || self.0.iter().any(|network| network.contains(address))
    }
}

/// Returns whether an address belongs to the public internet. An IPv6 address that stands for an
/// IPv4 address is judged by that.
fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(_) => !SPECIAL_V4.iter().any(|network| network.contains(address)),
        IpAddr::V6(six) if NAT64.contains(address) => {
            let [.., a, b, c, d] = six.octets();
            is_public(Ipv4Addr::new(a, b, c, d).into())
        }
        IpAddr::V6(six) if SIX_TO_FOUR.contains(address) => {
            let [_, _, a, b, c, d, ..] = six.octets();
            is_public(Ipv4Addr::new(a, b, c, d).into())
        }
        IpAddr::V6(_) => {
            GLOBAL_V6.contains(address) && !SPECIAL_V6.iter().any(|network| network.contains(address))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allows(networks: &[&str], address: &str) -> bool {
        let networks: Vec<String> = networks.iter().map(ToString::to_string).collect();
        Networks::parse(&networks).unwrap().allow(address.parse().unwrap())
    }

    #[test]
    fn only_public_addresses_are_allowed_by_default() {
        for address in ["1.1.1.1", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "64:ff9b::101:101"] {
            assert!(allows(&[], address), "{address}");
        }
        for address in [
            "0.0.0.0",
            "10.0.0.1",
            "100.64.0.1",
            "127.0.0.1",
            "127.8.9.1",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "198.19.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            // IPv4-mapped and IPv4-compatible.
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "::10.0.0.1",
            "fc00::1",
            "fd00:ec2::254",
            "fe80::1",
            "fec0::1",
            "ff02::1",
            "2001:db8::1",
            "2001::1",
            // The ways to 10.0.0.1 through NAT64 and 6to4.
            "64:ff9b::a00:1",
            "64:ff9b:1::1",
            "2002:a00:1::1",
        ] {
            assert!(!allows(&[], address), "{address}");
        }
    }

    #[test]
    fn an_allowed_network_opens_nothing_else() {
        let networks = ["10.1.0.0/16", "::1", "127.0.0.1", "fd12::/16"];
        for address in ["10.1.255.1", "::1", "127.0.0.1", "::ffff:127.0.0.1", "::ffff:10.1.0.1", "fd12::9"] {
            assert!(allows(&networks, address), "{address}");
        }
        for address in ["10.2.0.1", "127.0.0.2", "169.254.169.254", "fd13::9", "::2"] {
            assert!(!allows(&networks, address), "{address}");
        }
        assert!(allows(&["0.0.0.0/0"], "169.254.169.254"));
    }

    #[test]
    fn what_is_no_network_is_refused() {
        for text in
            ["", "localhost", "10.0.0.0/33", "10.0.0.1/8", "::/129", "10.0.0.0/", "10.0.0.0/+8", "fd00::1/8"]
        {
            assert_eq!(Networks::parse(&[text.to_owned()]), Err(text), "{text}");
        }
    }
}
