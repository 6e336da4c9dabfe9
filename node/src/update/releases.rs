//! A folder of releases on the web: which version is the newest, and its archive.

use super::{ReleaseKeys, UpdateError};
use aws_lc_rs::digest::{Context, SHA256};
use data_encoding::HEXLOWER;
use reqwest::{Client, Response, Url, redirect};
use semver::Version;
use std::error::Error;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

/// Longest list of hashes (bytes).
const LIST_BYTES: u64 = 64 << 10;
/// Longest signature (bytes).
const SIGNATURE_BYTES: u64 = 4 << 10;
/// Largest archive (bytes).
const ARCHIVE_BYTES: u64 = 1 << 30;
/// Redirections that are followed.
const REDIRECTS: usize = 5;
/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(10);
/// A stream without a byte for so long is broken.
const SILENCE: Duration = Duration::from_secs(30);

/// Where releases are.
pub struct Releases {
    base: String,
    client: Client,
    keys: ReleaseKeys,
}

/// A program for this machine, packed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Archive {
    /// Its version.
    pub version: Version,
    /// `tsnode-VERSION-TARGET`: its folder within, and its name but for `.tar.gz`.
    pub stem: String,
    /// Where it is.
    url: String,
    /// Its SHA-256, in lower-case digits.
    hash: String,
}

impl Releases {
    /// Releases below an address, by whoever holds one of these keys.
    ///
    /// # Errors
    /// When others could stand in between, or this system cannot tell whom to trust.
    pub fn new(base: &str, keys: ReleaseKeys) -> Result<Self, UpdateError> {
        let base = base.trim().trim_end_matches('/').to_owned();
        let insecure = || UpdateError::Insecure(base.clone());
        let url = Url::parse(&base).map_err(|_| insecure())?;
        let is_own = matches!(url.host_str(), Some("127.0.0.1" | "localhost" | "[::1]"));
        if url.scheme() != "https" && !(url.scheme() == "http" && is_own) {
            return Err(insecure());
        }
        let builder = || {
            let agent = concat!("tsnode/", env!("CARGO_PKG_VERSION"));
            let policy = redirect::Policy::limited(REDIRECTS);
            let common = Client::builder().user_agent(agent).redirect(policy).https_only(!is_own);
            common.connect_timeout(CONNECT).read_timeout(SILENCE)
        };
        let built = match builder().build() {
            // Certificates are not asked for there, and the system may have none.
            Err(_) if is_own => builder().tls_certs_only([]).build(),
            built => built,
        };
        let client = built.map_err(|error| unreachable(&base, &error))?;
        Ok(Self { base, client, keys })
    }

    /// The archive of a version, or of the newest.
    ///
    /// # Errors
    /// When there is none for this machine, or the list of them cannot be had, or is not signed as it has to be.
    pub async fn find(&self, version: Option<&Version>) -> Result<Archive, UpdateError> {
        let target = target().ok_or(UpdateError::Platform)?;
        let folder = match version {
            Some(version) => format!("{}/download/v{version}", self.base),
            None => format!("{}/latest/download", self.base),
        };
        let url = format!("{folder}/SHA256SUMS");
        let list = self.whole(&url, LIST_BYTES).await?;
        self.verify(&list, format!("{url}.minisig")).await?;
        let found = archive_in(&String::from_utf8_lossy(&list), target);
        let Some((found, stem, hash)) = found else {
            return Err(UpdateError::NoArchive { url, target: target.into() });
        };
        match version {
            Some(wanted) if *wanted != found => Err(UpdateError::OtherVersion { url, found, wanted: wanted.clone() }),
            _ => Ok(Archive { version: found, url: format!("{folder}/{stem}.tar.gz"), stem, hash }),
        }
    }

    /// Holds a list against the signature at this address.
    async fn verify(&self, list: &[u8], url: String) -> Result<(), UpdateError> {
        let signature = match self.whole(&url, SIGNATURE_BYTES).await {
            Err(UpdateError::Unreachable { url, why }) => return Err(UpdateError::Unsigned { url, why }),
            answer => answer?,
        };
        let verified = self.keys.verify(list, &String::from_utf8_lossy(&signature));
        verified.map_err(|why| UpdateError::Signature { url, why })
    }

    /// Fetches an archive into a file, which is removed if it is another than the list says.
    ///
    /// # Errors
    /// When it cannot be had whole and as it should be.
    pub async fn fetch(&self, archive: &Archive, into: &Path) -> Result<(), UpdateError> {
        let mut file = File::create_new(into).map_err(UpdateError::disk(into))?;
        let mut context = Context::new(&SHA256);
        let took = self
            .read(&archive.url, ARCHIVE_BYTES, |bytes| {
                context.update(bytes);
                file.write_all(bytes).map_err(UpdateError::disk(into))
            })
            .await;
        let found = HEXLOWER.encode(context.finish().as_ref());
        let wrong = || {
            let (archive, wanted) = (format!("{}.tar.gz", archive.stem), archive.hash.clone());
            UpdateError::Hash { archive, found: found.clone(), wanted }
        };
        let outcome = took.and_then(|()| if found == archive.hash { Ok(()) } else { Err(wrong()) });
        if outcome.is_err() {
            // The first error is the one worth reporting.
            let _ = std::fs::remove_file(into);
        }
        outcome
    }

    /// An answer, which is bounded.
    async fn whole(&self, url: &str, most: u64) -> Result<Vec<u8>, UpdateError> {
        let mut all = Vec::new();
        self.read(url, most, |bytes| {
            all.extend_from_slice(bytes);
            Ok(())
        })
        .await?;
        Ok(all)
    }

    /// Reads an answer piece by piece, which is bounded.
    async fn read(
        &self,
        url: &str,
        most: u64,
        mut take: impl FnMut(&[u8]) -> Result<(), UpdateError>,
    ) -> Result<(), UpdateError> {
        let lost = |error: reqwest::Error| unreachable(url, &error);
        let mut response: Response = self.client.get(url).send().await.map_err(lost)?;
        if !response.status().is_success() {
            let why = format!("the server answered {}", response.status().as_u16());
            return Err(UpdateError::Unreachable { url: url.to_owned(), why });
        }
        let mut left = most;
        while let Some(bytes) = response.chunk().await.map_err(lost)? {
            left = left
                .checked_sub(bytes.len() as u64)
                .ok_or_else(|| UpdateError::TooLong { url: url.to_owned(), most })?;
            take(&bytes)?;
        }
        Ok(())
    }
}

/// What archives for this machine are called: a static program is followed by static ones, since its system may run no others.
fn target() -> Option<&'static str> {
    match (std::env::consts::OS, std::env::consts::ARCH, cfg!(target_env = "musl")) {
        ("linux", "x86_64", false) => Some("x86_64-linux"),
        ("linux", "aarch64", false) => Some("aarch64-linux"),
        ("linux", "x86_64", true) => Some("x86_64-linux-musl"),
        ("linux", "aarch64", true) => Some("aarch64-linux-musl"),
        _ => None,
    }
}

/// Version, stem and hash of the first archive for a target in a list as `sha256sum` writes it.
fn archive_in(list: &str, target: &str) -> Option<(Version, String, String)> {
    list.lines().find_map(|line| {
        let (hash, name) = line.trim_end().split_at_checked(64)?;
        let stem = name.strip_prefix("  ").or_else(|| name.strip_prefix(" *"))?.strip_suffix(".tar.gz")?;
        let version = stem.strip_prefix("tsnode-")?.strip_suffix(target)?.strip_suffix('-')?;
        let is_hash = hash.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        Some((version.parse().ok().filter(|_| is_hash)?, stem.to_owned(), hash.to_owned()))
    })
}

/// The cause of an error that has others around it.
fn unreachable(url: &str, error: &reqwest::Error) -> UpdateError {
    let mut cause: &dyn Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    let why = if error.is_timeout() { "no answer in time".into() } else { cause.to_string() };
    UpdateError::Unreachable { url: url.to_owned(), why }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::update::tests::public;
    use ed25519_dalek::SigningKey;

    #[test]
    fn a_list_is_read_as_sha256sum_writes_it() {
        let hash = "0123456789abcdef".repeat(4);
        let of = |line: &str| {
            archive_in(&format!("first\n{line}\n"), "x86_64-linux").map(|(version, ..)| version.to_string())
        };
        assert_eq!(of(&format!("{hash}  tsnode-1.2.3-x86_64-linux.tar.gz")).as_deref(), Some("1.2.3"));
        assert_eq!(of(&format!("{hash} *tsnode-1.2.3-rc.1-x86_64-linux.tar.gz")).as_deref(), Some("1.2.3-rc.1"));
        for wrong in [
            format!("{hash}  tsnode-1.2.3-aarch64-linux.tar.gz"),
            format!("{hash}  tsnode-1.2.3-x86_64-linux-musl.tar.gz"),
            format!("{hash}  tsnode-../../x-x86_64-linux.tar.gz"),
            format!("{}  tsnode-1.2.3-x86_64-linux.tar.gz", "g".repeat(64)),
            format!("{}é tsnode-1.2.3-x86_64-linux.tar.gz", "0".repeat(63)),
            format!("{hash} tsnode-1.2.3-x86_64-linux.tar.gz"),
        ] {
            assert_eq!(of(&wrong), None, "{wrong}");
        }
    }

    #[test]
    fn nobody_may_stand_in_between() {
        let at = |base| Releases::new(base, ReleaseKeys::parse(&public(&SigningKey::from_bytes(&[1; 32])))?);
        for fine in ["https://example.com/releases/", "http://127.0.0.1:8000", "http://[::1]:8000", "http://localhost"]
        {
            assert!(at(fine).is_ok(), "{fine}");
        }
        for wrong in ["http://example.com", "ftp://example.com", "example.com", "", "http://127.0.0.1.example.com"] {
            assert!(matches!(at(wrong), Err(UpdateError::Insecure(_))), "{wrong}");
        }
    }
}
