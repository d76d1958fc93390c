//! The section `[page]`: address, users and transport of the page for operators.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;

use brokers::{Network, Secret};
use operate::Role;
use schemars::JsonSchema;
use secrecy::SecretString;
use serde::Deserialize;
use web::{PageConfig, PageCredential, PageTls, PageUser, ProxyLogin};

use super::problems::Problems;

/// The section as written in the file.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PageSection {
    listen: Option<String>,
    #[serde(default)]
    hosts: Vec<String>,
    #[serde(default)]
    behind_proxy: bool,
    tls: Option<PageTlsSection>,
    dashboard_url: Option<String>,
    runbook_url: Option<String>,
    /// The proxy that logs people in, and names them in headers.
    proxy_login: Option<ProxyLoginSection>,
    #[serde(default)]
    user: Vec<PageUserSection>,
}

/// The section `[page.tls]` as written in the file.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PageTlsSection {
    cert_file: PathBuf,
    key_file: PathBuf,
}

/// The section `[page.proxy_login]` as written in the file.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ProxyLoginSection {
    /// Addresses and networks from which the headers are believed: `10.0.0.7`, `10.1.0.0/24`.
    #[serde(default)]
    from: Vec<String>,
    /// The secret that the proxy sends, at least 12 bytes.
    #[schemars(with = "Option<String>")]
    secret: Option<SecretString>,
    /// The file that holds the secret; read again after five seconds.
    secret_file: Option<PathBuf>,
    /// The header with the secret. Default `X-Relay-Proxy-Secret`.
    secret_header: Option<String>,
    /// The header with the person's name. Default `X-Auth-Request-Email`.
    user_header: Option<String>,
    /// The header with the person's groups. Default `X-Auth-Request-Groups`.
    groups_header: Option<String>,
    /// Groups that may view; `*` is everybody whom the proxy names.
    #[serde(default)]
    viewers: Vec<String>,
    /// Groups that may also decide; `*` is everybody whom the proxy names.
    #[serde(default)]
    operators: Vec<String>,
    /// The path at which the proxy ends its session.
    logout_url: Option<String>,
}

/// One `[[page.user]]` as written in the file.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PageUserSection {
    name: String,
    role: RoleWord,
    #[schemars(with = "Option<String>")]
    password: Option<SecretString>,
    password_file: Option<PathBuf>,
    #[schemars(with = "Option<String>")]
    token: Option<SecretString>,
    token_file: Option<PathBuf>,
}

/// A role as written in the file.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum RoleWord {
    Viewer,
    Operator,
}

/// Maximum length of a user's name, in bytes.
const NAME_BYTES_MAX: usize = 64;
/// More users need a directory: put a proxy in front.
const USERS_MAX: usize = 200;

/// Returns the checked section, if the page has an address. Adds its problems to `problems`.
pub(super) fn check(section: PageSection, problems: &mut Problems) -> Option<PageConfig> {
    let users = users(section.user, problems);
    let hosts: Vec<String> = section.hosts.iter().map(|host| host.to_ascii_lowercase()).collect();
    for (index, host) in hosts.iter().enumerate().filter(|(_, host)| !is_host(host)) {
        let help = "write a name with or without a port: \"relay.internal\", \"relay.internal:8443\"";
        problems.add(format!("page.hosts[{index}]"), format!("{host:?} is not a host name"), Some(help));
    }
    let listen = match &section.listen {
        Some(text) => match text.parse::<SocketAddr>() {
            Ok(address) => address,
            Err(_) => {
                let help = "write an IP address and a port, for example \"127.0.0.1:9465\" or \"[::1]:9465\"";
                problems.add(String::from("page.listen"), format!("{text:?} is not an address"), Some(help));
                return None;
            }
        },
        None => {
            let is_given = section.behind_proxy
                || section.tls.is_some()
                || section.proxy_login.is_some()
                || !hosts.is_empty();
            if is_given || !users.is_empty() {
                let help = "add listen = \"127.0.0.1:9465\", or remove the section";
                problems.add(String::from("page"), "the page has no address", Some(help));
            }
            return None;
        }
    };
    if cfg!(not(feature = "page")) {
        let help = "build the relay with the feature `page`, or remove the setting";
        problems.add(String::from("page.listen"), "this relay was built without the page", Some(help));
    }
    let tls = section.tls.map(|PageTlsSection { cert_file, key_file }| PageTls { cert_file, key_file });
    let (dashboard_url, runbook_url) = (section.dashboard_url, section.runbook_url);
    for (name, url) in [("dashboard_url", &dashboard_url), ("runbook_url", &runbook_url)] {
        check_link(name, url.as_deref(), problems);
    }
    let behind_proxy = section.behind_proxy;
    let proxy_login = section.proxy_login.and_then(|login| check_proxy_login(login, behind_proxy, problems));
    let page =
        PageConfig { listen, hosts, behind_proxy, tls, users, proxy_login, dashboard_url, runbook_url };
    check_reach(&page, problems);
    Some(page)
}

/// Refuses an address that a browser would not open as a page.
fn check_link(name: &str, url: Option<&str>, problems: &mut Problems) {
    let is_page = |url: &str| {
        let host = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
        host.is_some_and(|host| !host.is_empty() && !host.starts_with('/'))
            && !url.contains(|char: char| char.is_whitespace() || char.is_control())
    };
    if let Some(url) = url.filter(|url| !is_page(url)) {
        let help = "write an address that begins with https:// or http://";
        problems.add(format!("page.{name}"), format!("{url:?} is not the address of a page"), Some(help));
    }
}

/// Headers with a meaning of their own, which do not name a person.
const OTHER_HEADERS: [&str; 6] = ["authorization", "connection", "content-type", "cookie", "host", "origin"];

/// Returns the checked section. Adds its problems to `problems`.
fn check_proxy_login(
    section: ProxyLoginSection,
    behind_proxy: bool,
    problems: &mut Problems,
) -> Option<ProxyLogin> {
    let path = |name: &str| format!("page.proxy_login.{name}");
    if !behind_proxy {
        let help = "set behind_proxy = true, with a proxy that handles TLS, or remove the section";
        problems.add(String::from("page.proxy_login"), "the page is not behind a proxy", Some(help));
    }
    let mut from = Vec::new();
    for (index, text) in section.from.iter().enumerate() {
        match Network::parse(text) {
            Some(network) => from.push(network),
            None => {
                let help = "write an address or a network: \"10.0.0.7\", \"10.1.0.0/24\", \"::1\"";
                problems.add(
                    path(&format!("from[{index}]")),
                    format!("{text:?} is not a network"),
                    Some(help),
                );
            }
        }
    }
    let has_secret = section.secret.is_some() || section.secret_file.is_some();
    if !has_secret && (section.from.is_empty() || from.iter().any(|network| network.is_everything())) {
        let help =
            "name the addresses of the proxy in from, or set secret_file and let the proxy send that secret";
        problems.add(path("from"), "everybody could send these headers", Some(help));
    }
    let secret = has_secret.then(|| Secret::from_pair("secret", section.secret, section.secret_file));
    let secret =
        secret.transpose().map_err(|error| problems.add(path("secret"), error.to_string(), None)).ok()?;
    let header = |given: Option<String>, default: &str| {
        given.unwrap_or_else(|| default.to_owned()).to_ascii_lowercase()
    };
    let user_header = header(section.user_header, "x-auth-request-email");
    let groups_header = header(section.groups_header, "x-auth-request-groups");
    let secret_header = header(section.secret_header, "x-relay-proxy-secret");
    let mut names = BTreeSet::new();
    for (name, header) in
        [("user_header", &user_header), ("groups_header", &groups_header), ("secret_header", &secret_header)]
    {
        let is_name = !header.is_empty()
            && header.len() <= 100
            && header.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        let is_other = OTHER_HEADERS.contains(&header.as_str()) || header.starts_with("sec-");
        if !is_name || is_other || !names.insert(header) {
            let help = "name a header of its own that only the proxy sets: letters, digits and hyphens";
            problems.add(path(name), format!("{header:?} cannot be used"), Some(help));
        }
    }
    if section.viewers.is_empty() && section.operators.is_empty() {
        let help = "name the groups that may see the page, or \"*\" for everybody whom the proxy names";
        problems.add(path("viewers"), "no user may see the page", Some(help));
    }
    for (name, groups) in [("viewers", &section.viewers), ("operators", &section.operators)] {
        let is_group = |group: &&String| group.is_empty() || group.trim() != *group || group.contains(',');
        if let Some(group) = groups.iter().find(is_group) {
            let help = "write groups as the proxy sends them, without commas and spaces around";
            problems.add(path(name), format!("{group:?} is not a group"), Some(help));
        }
    }
    if let Some(url) = section.logout_url.as_deref().filter(|url| !is_path(url)) {
        let help = "write a path of the same host, such as \"/oauth2/sign_out\": the page may send a browser nowhere else";
        problems.add(path("logout_url"), format!("{url:?} is not a path"), Some(help));
    }
    Some(ProxyLogin {
        from,
        secret,
        secret_header,
        user_header,
        groups_header,
        viewers: section.viewers,
        operators: section.operators,
        logout_url: section.logout_url,
    })
}

/// Returns whether a text is a path, with or without a query.
fn is_path(text: &str) -> bool {
    text.starts_with('/')
        && !text.starts_with("//")
        && text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\')
}

/// Refuses settings that would open the page to a network.
fn check_reach(page: &PageConfig, problems: &mut Problems) {
    if !page.is_remote() {
        return;
    }
    let why = match page.foreign_host() {
        _ if !page.listen.ip().is_loopback() => {
            format!("other machines can reach {}", page.listen.ip())
        }
        Some(host) if !page.behind_proxy => {
            format!("page.hosts contains {host:?}, so other machines can reach the page")
        }
        _ => String::from("a proxy forwards requests from other machines"),
    };
    if page.users.is_empty() && page.proxy_login.is_none() {
        let help = "add [[page.user]] with name, role and token_file or password_file, or [page.proxy_login] for a \
                    proxy that logs people in; or listen at 127.0.0.1 without a proxy";
        problems.add(String::from("page.user"), format!("{why}, but no login is configured"), Some(help));
    }
    if !page.is_encrypted() {
        let help =
            "add [page.tls] with cert_file and key_file, or set behind_proxy = true if a proxy handles TLS";
        let message = format!("{why}, but credentials would cross the network unencrypted");
        problems.add(String::from("page.tls"), message, Some(help));
    }
    if page.hosts.is_empty() && (page.behind_proxy || page.listen.ip().is_unspecified()) {
        let help = "add hosts = [\"relay.internal\"] with the host names in the addresses that people use";
        let message = format!("{why}, but its host names are unknown");
        problems.add(String::from("page.hosts"), message, Some(help));
    }
}

fn users(sections: Vec<PageUserSection>, problems: &mut Problems) -> Vec<PageUser> {
    let mut names = BTreeSet::new();
    if sections.len() > USERS_MAX {
        let message = format!("{} users are too many; the maximum is {USERS_MAX}", sections.len());
        problems.add(String::from("page.user"), message, Some("let a proxy handle logins"));
    }
    let sections =
        sections.into_iter().enumerate().map(|(index, user)| (format!("page.user[{index}]"), user));
    sections
        .filter_map(|(path, user)| {
            let name = user.name;
            let printable = name.chars().all(|c| !c.is_control() && c != ':');
            if name.trim() != name || name.is_empty() || name.len() > NAME_BYTES_MAX || !printable {
                let help = format!(
                    "use 1 to {NAME_BYTES_MAX} bytes, without colons and without leading or trailing spaces"
                );
                problems.add(format!("{path}.name"), format!("{name:?} is not a valid name"), Some(&help));
            }
            if !names.insert(name.clone()) {
                problems.add(format!("{path}.name"), format!("{name:?} is the name of two users"), None);
            }
            let is_given =
                |text: &Option<SecretString>, file: &Option<PathBuf>| text.is_some() || file.is_some();
            let has_password = is_given(&user.password, &user.password_file);
            let credential = match (has_password, is_given(&user.token, &user.token_file)) {
                (true, false) => Secret::from_pair("password", user.password, user.password_file)
                    .map(PageCredential::Password),
                (false, true) => {
                    Secret::from_pair("token", user.token, user.token_file).map(PageCredential::Token)
                }
                (both, _) => {
                    let message =
                        if both { "has a password and a token" } else { "has no password and no token" };
                    let help = "set one of token_file, password_file, token and password";
                    problems.add(path, format!("the user {name:?} {message}"), Some(help));
                    return None;
                }
            };
            let credential = credential.map_err(|error| problems.add(path, error.to_string(), None)).ok()?;
            let role = match user.role {
                RoleWord::Viewer => Role::Viewer,
                RoleWord::Operator => Role::Operator,
            };
            Some(PageUser { name, role, credential })
        })
        .collect()
}

/// Returns whether a text is a name or address, with or without a port.
fn is_host(text: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '[' | ']');
    !text.is_empty() && text.len() <= 255 && text.chars().all(allowed)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::{Config, Overrides};

    const PIPELINE: &str = "[[pipeline]]\nname = 'orders'\n[pipeline.database]\nurl = 'sqlite:orders.db'\n\
                            [pipeline.sqs]\nregion = 'eu-central-1'\nendpoint_url = 'http://127.0.0.1:1'\n";
    const USER: &str = "[[page.user]]\nname = 'ann'\nrole = 'operator'\ntoken = 'a-token-of-some-length'\n";

    fn problem(page: &str) -> Option<String> {
        let text = format!("{PIPELINE}{page}");
        let error = Config::read(Path::new("relay.toml"), &text, &Overrides::default()).err()?;
        // The text as shown, without line breaks.
        let shown = format!("{:?}", miette::Report::new(error)).replace('│', " ");
        Some(shown.split_whitespace().collect::<Vec<_>>().join(" "))
    }

    #[test]
    #[cfg(all(feature = "page", feature = "sqs"))]
    fn a_page_that_others_reach_needs_users_and_tls() {
        assert_eq!(problem("[page]\nlisten = '127.0.0.1:0'\n"), None);
        assert_eq!(problem(&format!("[page]\nlisten = '[::1]:0'\n{USER}")), None);
        let own = "hosts = ['localhost:9465', 'relay.localhost', '127.0.0.2', '[::1]:9465', '[::1]']\n";
        assert_eq!(problem(&format!("[page]\nlisten = '127.0.0.1:0'\n{own}")), None);
        let tls = "tls = { cert_file = 'a', key_file = 'b' }\n";
        let open = "[page]\nlisten = '10.1.2.3:9465'\n";
        assert_eq!(problem(&format!("{open}{tls}{USER}")), None);
        let proxy = "behind_proxy = true\nhosts = ['relay.internal']\n";
        assert_eq!(problem(&format!("{open}{proxy}{USER}")), None);
        for (page, told) in [
            (open.to_owned(), "no login is configured"),
            (format!("{open}{tls}"), "no login is configured"),
            (format!("{open}{USER}"), "unencrypted"),
            (format!("[page]\nlisten = '127.0.0.1:0'\n{proxy}"), "no login is configured"),
            (
                String::from("[page]\nlisten = '127.0.0.1:0'\nhosts = ['localhost', 'relay.internal:80']\n"),
                "page.hosts contains \"relay.internal:80\", so other machines can reach the page, but no login is configured",
            ),
            (format!("[page]\nlisten = '127.0.0.1:0'\nhosts = ['relay.internal']\n{USER}"), "unencrypted"),
            (
                format!("[page]\nlisten = '127.0.0.1:0'\nbehind_proxy = true\n{USER}"),
                "its host names are unknown",
            ),
            (format!("[page]\nlisten = '0.0.0.0:0'\n{tls}{USER}"), "its host names are unknown"),
        ] {
            let problem = problem(&page).unwrap_or_else(|| panic!("accepted: {page}"));
            assert!(problem.contains(told), "{page}: {problem}");
        }
    }

    #[test]
    #[cfg(all(feature = "page", feature = "sqs"))]
    fn a_proxy_that_names_people_is_known_by_its_address_or_its_secret() {
        let page = "[page]\nlisten = '10.1.2.3:9465'\nbehind_proxy = true\nhosts = ['relay.internal']\n";
        let section = "[page.proxy_login]\n";
        let good = "from = ['10.0.0.7', '10.1.0.0/24']\nviewers = ['staff']\n";
        assert_eq!(problem(&format!("{page}{section}{good}")), None);
        assert_eq!(problem(&format!("{page}{section}{good}{USER}")), None);
        let by_secret =
            "secret = 'a-secret-of-some-length'\noperators = ['*']\nlogout_url = '/oauth2/sign_out'\n";
        assert_eq!(problem(&format!("{page}{section}{by_secret}")), None);
        for (login, told) in [
            ("viewers = ['staff']\n", "everybody could send these headers"),
            ("from = ['0.0.0.0/0']\nviewers = ['staff']\n", "everybody could send these headers"),
            ("from = ['proxy.internal']\nviewers = ['staff']\n", "is not a network"),
            ("from = ['10.0.0.7']\n", "no user may see the page"),
            ("from = ['10.0.0.7']\nviewers = ['a,b']\n", "is not a group"),
            ("from = ['10.0.0.7']\nviewers = ['a']\nuser_header = 'Cookie'\n", "cannot be used"),
            ("from = ['10.0.0.7']\nviewers = ['a']\nuser_header = 'X_User'\n", "cannot be used"),
            (
                "from = ['10.0.0.7']\nviewers = ['a']\nuser_header = 'X-A'\ngroups_header = 'x-a'\n",
                "cannot be used",
            ),
            ("from = ['10.0.0.7']\nviewers = ['a']\nlogout_url = 'https://evil.example'\n", "is not a path"),
            ("secret = 's3cret'\nsecret_file = '/x'\nviewers = ['a']\n", "either it or"),
        ] {
            let problem =
                problem(&format!("{page}{section}{login}")).unwrap_or_else(|| panic!("accepted: {login}"));
            assert!(problem.contains(told), "{login}: {problem}");
            assert!(!problem.contains("s3cret"), "{problem}");
        }
        let open = format!("[page]\nlisten = '127.0.0.1:0'\n{section}{good}");
        assert!(problem(&open).unwrap_or_default().contains("the page is not behind a proxy"));
    }

    #[test]
    #[cfg(all(feature = "page", feature = "sqs"))]
    fn each_user_has_one_name_one_role_and_one_proof() {
        let page = "[page]\nlisten = '127.0.0.1:0'\n[[page.user]]\n";
        for (user, told) in [
            ("name = 'a'\nrole = 'viewer'\n", "no password and no token"),
            (
                "name = 'a'\nrole = 'viewer'\ntoken = 's3cret'\npassword = 's3cret'\n",
                "a password and a token",
            ),
            ("name = 'a'\nrole = 'viewer'\ntoken = 's3cret'\ntoken_file = '/x'\n", "either it or"),
            ("name = 'a:b'\nrole = 'viewer'\ntoken = 's3cret'\n", "is not a valid name"),
            ("name = 'a'\nrole = 'root'\ntoken = 's3cret'\n", "viewer, operator"),
            ("name = 'ann'\nrole = 'viewer'\ntoken = 's3cret'\n", "the name of two users"),
        ] {
            let problem =
                problem(&format!("{page}{user}{USER}")).unwrap_or_else(|| panic!("accepted: {user}"));
            assert!(problem.contains(told), "{user}: {problem}");
            assert!(!problem.contains("s3cret"), "{problem}");
        }
        assert!(problem(USER).unwrap_or_default().contains("no address"));
    }
}
