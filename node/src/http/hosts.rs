//! By which names HTTP may be asked, and for which pages: what stands between a peer and the pages that its owner's browser shows.
//!
//! A browser sends what any page tells it to, and has the page read what is answered where the page's own name leads here (DNS
//! rebinding). It always says by which name it asks (`HostPattern`) and, of whatever may change something, for which page (`Origin`).

use std::net::IpAddr;
use std::str::FromStr;

/// Names that are allowed beside this host's own, as `llm.example.com,.example.org`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllowedHosts(Vec<HostPattern>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum HostPattern {
    Any,
    Name(String),
    /// With its dot: all that end with it.
    Below(String),
}

impl HostPattern {
    fn is(&self, name: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Name(own) => own == name,
            Self::Below(end) => name.ends_with(end.as_str()) || name == &end[1..],
        }
    }
}

impl FromStr for AllowedHosts {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.split(',').map(host).collect::<Result<_, _>>().map(Self)
    }
}

fn host(text: &str) -> Result<HostPattern, String> {
    const WRONG: &str = "write names without a port, as llm.example.com, .example.com for all below it, or * for any";
    let name = text.trim().to_ascii_lowercase();
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name == "*" {
        return Ok(HostPattern::Any);
    }
    if name.parse::<IpAddr>().is_err() && !name.chars().all(is_name) || name.trim_matches('.').is_empty() {
        return Err(WRONG.into());
    }
    Ok(if name.starts_with('.') { HostPattern::Below(name) } else { HostPattern::Name(name) })
}

/// Pages that may ask beside this peer's own, as `https://chat.example.com,http://localhost:3000`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllowedOrigins(Vec<PageOrigin>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum PageOrigin {
    Any,
    Of(String),
}

impl FromStr for AllowedOrigins {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.split(',').map(page).collect::<Result<_, _>>().map(Self)
    }
}

fn page(text: &str) -> Result<PageOrigin, String> {
    const WRONG: &str = "write pages' origins, as https://chat.example.com or http://localhost:3000, null for pages of files, \
                         or * for any";
    let origin = text.trim().trim_end_matches('/').to_ascii_lowercase();
    match origin.split_once("://") {
        _ if origin == "*" => Ok(PageOrigin::Any),
        _ if origin == "null" => Ok(PageOrigin::Of(origin)),
        Some((scheme, host)) if !scheme.is_empty() && !host.is_empty() && !host.contains(['/', '?', '#', ' ', '*']) => {
            Ok(PageOrigin::Of(origin))
        }
        _ => Err(WRONG.into()),
    }
}

/// All of it, as a peer's HTTP is told.
#[derive(Clone, Debug)]
pub struct Sites {
    /// Nobody but this host comes.
    is_local: bool,
    /// What this host is called.
    names: Vec<String>,
    hosts: AllowedHosts,
    origins: AllowedOrigins,
}

/// For which page a browser asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asks {
    /// None that it says, or this peer's own.
    Itself,
    /// One that is allowed.
    Allowed,
    /// Any other.
    Foreign,
}

impl Default for Sites {
    fn default() -> Self {
        Self { is_local: true, names: Vec::new(), hosts: AllowedHosts::default(), origins: AllowedOrigins::default() }
    }
}

impl Sites {
    /// Where HTTP listens there, on a host of that name.
    #[must_use]
    pub fn new(http: IpAddr, host_name: &str, hosts: AllowedHosts, origins: AllowedOrigins) -> Self {
        let name = host_name.trim().to_ascii_lowercase();
        let names = if name.is_empty() { Vec::new() } else { vec![format!("{name}.local"), name] };
        Self { is_local: http.to_canonical().is_loopback(), names, hosts, origins }
    }

    /// Whether requests may say that they are for this host (with or without a port).
    #[must_use]
    pub fn answers_to(&self, authority: &str) -> bool {
        let name = name_of(authority).to_ascii_lowercase();
        let name = name.trim_end_matches('.');
        if self.hosts.0.iter().any(|host| host.is(name)) {
            return true;
        }
        match name.parse::<IpAddr>() {
            // Nobody can make an address point elsewhere, and behind a router or in a container it is not one of the host's.
            Ok(address) => !self.is_local || address.to_canonical().is_loopback(),
            Err(_) => {
                let is_own = || self.names.iter().any(|own| own == name);
                name == "localhost" || name.ends_with(".localhost") || !self.is_local && is_own()
            }
        }
    }

    /// For which page a request with this `Origin`, sent to this `HostPattern`, asks.
    #[must_use]
    pub fn asks(&self, origin: Option<&str>, host: Option<&str>) -> Asks {
        let Some(origin) = origin else { return Asks::Itself };
        let of = origin.split_once("://").map(|(_, of)| of);
        if of.zip(host).is_some_and(|(of, host)| of.eq_ignore_ascii_case(host)) {
            return Asks::Itself;
        }
        if self.allows(origin) { Asks::Allowed } else { Asks::Foreign }
    }

    /// Whether the owner allows a page's origin.
    #[must_use]
    pub fn allows(&self, origin: &str) -> bool {
        self.origins.0.iter().any(|page| match page {
            PageOrigin::Any => true,
            PageOrigin::Of(own) => own.eq_ignore_ascii_case(origin),
        })
    }

    /// Whether any page is allowed.
    #[must_use]
    pub fn has_pages(&self) -> bool {
        !self.origins.0.is_empty()
    }
}

/// What this host is called; nothing where the system does not say.
#[must_use]
pub fn host_name() -> String {
    crate::platform::host_name()
}

/// An authority without its port.
fn name_of(authority: &str) -> &str {
    if let Some(rest) = authority.strip_prefix('[') {
        return rest.split_once(']').map_or(rest, |(address, _)| address);
    }
    authority.rsplit_once(':').map_or(authority, |(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sites(http: &str, hosts: &str, origins: &str) -> Sites {
        let origins = if origins.is_empty() { AllowedOrigins::default() } else { origins.parse().unwrap() };
        let hosts = if hosts.is_empty() { AllowedHosts::default() } else { hosts.parse().unwrap() };
        Sites::new(http.parse().unwrap(), "Box\n", hosts, origins)
    }

    #[test]
    fn a_peer_of_this_host_alone_answers_to_its_names_alone() {
        let sites = sites("127.0.0.1", "", "");
        for name in
            ["localhost", "LOCALHOST:7448", "app.localhost", "localhost.", "127.0.0.1:7448", "127.8.8.8", "[::1]:1"]
        {
            assert!(sites.answers_to(name), "{name}");
        }
        for name in
            ["evil.example", "evil.example:7448", "localhost.evil.example", "notlocalhost", "box", "10.0.0.1", ""]
        {
            assert!(!sites.answers_to(name), "{name}");
        }
    }

    #[test]
    fn one_that_listens_beyond_answers_to_addresses_and_its_own_name() {
        for http in ["0.0.0.0", "::", "192.0.2.7"] {
            let sites = sites(http, "", "");
            for name in ["box:7448", "box.local", "192.0.2.7:7448", "[2001:db8::1]", "localhost"] {
                assert!(sites.answers_to(name), "{name}");
            }
            assert!(!sites.answers_to("evil.example") && !sites.answers_to("box.evil.example"));
        }
    }

    #[test]
    fn names_are_allowed_one_by_one_by_their_end_or_all() {
        let some = sites("127.0.0.1", "llm.example.com, .example.org,10.0.0.1", "");
        for name in ["llm.example.com:443", "a.b.example.org", "example.org", "10.0.0.1:7448"] {
            assert!(some.answers_to(name), "{name}");
        }
        assert!(!some.answers_to("example.com") && !some.answers_to("notexample.org") && !some.answers_to("10.0.0.2"));
        assert!(sites("127.0.0.1", "*", "").answers_to("evil.example"));
        for wrong in ["", "a b", "http://a", "a:80", ".", "a,,b", "a/b", "\u{7}"] {
            assert!(wrong.parse::<AllowedHosts>().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_page_is_the_peers_own_allowed_or_foreign() {
        let none = sites("127.0.0.1", "", "");
        let at = Some("localhost:7448");
        assert_eq!(none.asks(None, at), Asks::Itself);
        assert_eq!(none.asks(Some("http://localhost:7448"), at), Asks::Itself);
        for foreign in
            ["http://localhost:3000", "https://evil.example", "null", "http://localhost:7448.evil.example", ""]
        {
            assert_eq!(none.asks(Some(foreign), at), Asks::Foreign, "{foreign}");
        }
        let some = sites("127.0.0.1", "", "https://Chat.example.com/, http://localhost:3000,null");
        for page in ["https://chat.example.com", "http://localhost:3000", "null"] {
            assert_eq!(some.asks(Some(page), at), Asks::Allowed, "{page}");
        }
        assert_eq!(some.asks(Some("http://chat.example.com"), at), Asks::Foreign, "another scheme is another page");
        assert_eq!(sites("127.0.0.1", "", "*").asks(Some("https://a.example"), at), Asks::Allowed);
        for wrong in ["", "chat.example.com", "https://", "https://a/b", "https://*.example.com", "https://a b"] {
            assert!(wrong.parse::<AllowedOrigins>().is_err(), "{wrong:?}");
        }
    }
}
