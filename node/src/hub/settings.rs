//! Where the hub and its cache are, by the variables that everybody knows: `HF_HOME`, `HF_HUB_CACHE`, `HF_TOKEN`, `HF_ENDPOINT`,
//! `HF_HUB_OFFLINE`.

use crate::platform::HOME;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where the hub is unless something else is said.
const ENDPOINT: &str = "https://huggingface.co";
/// Longest token that is read from a file (bytes).
const TOKEN_BYTES: u64 = 4096;

/// What shows the hub who asks. It is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct HubToken(String);

impl HubToken {
    /// For a header.
    pub(super) fn secret(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for HubToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// How long the hub is waited for.
#[derive(Clone, Copy, Debug)]
pub struct HubTimeouts {
    /// A stream without a byte for so long is broken.
    pub silence: Duration,
    /// Times that something is tried in a row without a byte more.
    pub tries: u32,
    /// Wait before the second try; doubled before each further one.
    pub first_wait: Duration,
    /// The longest wait that the hub may ask for.
    pub longest_wait: Duration,
}

impl Default for HubTimeouts {
    fn default() -> Self {
        Self {
            silence: Duration::from_secs(30),
            tries: 5,
            first_wait: Duration::from_secs(1),
            // As long as the hub's windows of counting requests.
            longest_wait: Duration::from_secs(300),
        }
    }
}

/// Where the hub is, who asks, and where its files are kept here.
#[derive(Clone, Debug)]
pub struct HubSettings {
    /// The hub's address, without a slash at its end.
    pub endpoint: String,
    /// Who asks.
    pub token: Option<HubToken>,
    /// The folder with `models--org--repo`.
    pub cache: PathBuf,
    /// Whether nothing may be asked of the network.
    pub offline: bool,
    /// How long it is waited for.
    pub patience: HubTimeouts,
}

impl HubSettings {
    /// By the variables. One that is empty counts as not set, as in `huggingface_hub`.
    pub fn gather(variable: impl Fn(&str) -> Option<String>) -> Self {
        let said = |name: &str| variable(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty());
        let home = said(HOME).map_or_else(|| PathBuf::from("/"), PathBuf::from);
        let folder = |text: String| match text.strip_prefix("~/") {
            Some(below) => home.join(below),
            None => PathBuf::from(text),
        };
        let caches = || said("XDG_CACHE_HOME").map(folder).unwrap_or_else(|| home.join(".cache"));
        let hf_home = said("HF_HOME").map(folder).unwrap_or_else(|| caches().join("huggingface"));
        let cache = said("HF_HUB_CACHE").or_else(|| said("HUGGINGFACE_HUB_CACHE")).map(folder);
        let token_file = said("HF_TOKEN_PATH").map(folder).unwrap_or_else(|| hf_home.join("token"));
        let token = said("HF_TOKEN").or_else(|| said("HUGGING_FACE_HUB_TOKEN")).or_else(|| read_token(&token_file));
        let offline = said("HF_HUB_OFFLINE").or_else(|| said("TRANSFORMERS_OFFLINE"));
        Self {
            endpoint: said("HF_ENDPOINT").unwrap_or_else(|| ENDPOINT.into()).trim_end_matches('/').to_owned(),
            token: token.filter(|token| token.bytes().all(|b| b.is_ascii_graphic())).map(HubToken),
            cache: cache.unwrap_or_else(|| hf_home.join("hub")),
            offline: offline.is_some_and(|value| matches!(value.to_uppercase().as_str(), "1" | "ON" | "YES" | "TRUE")),
            patience: HubTimeouts::default(),
        }
    }
}

/// As `hf auth login` leaves it.
fn read_token(path: &Path) -> Option<String> {
    let about = std::fs::metadata(path).ok().filter(|about| about.is_file() && about.len() <= TOKEN_BYTES)?;
    let text = std::fs::read_to_string(path).ok().filter(|_| about.len() > 0)?;
    Some(text.trim().to_owned()).filter(|token| !token.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gather(variables: &[(&str, &str)]) -> HubSettings {
        HubSettings::gather(|name| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn folders_are_where_huggingface_hub_has_them() {
        let cache = |variables: &[(&str, &str)]| gather(variables).cache;
        let home = ("HOME", "/home/a");
        assert_eq!(cache(&[home]), Path::new("/home/a/.cache/huggingface/hub"));
        assert_eq!(cache(&[home, ("XDG_CACHE_HOME", "/c")]), Path::new("/c/huggingface/hub"));
        assert_eq!(cache(&[home, ("HF_HOME", "~/hf")]), Path::new("/home/a/hf/hub"));
        assert_eq!(cache(&[home, ("HF_HOME", "/hf"), ("HF_HUB_CACHE", "/x")]), Path::new("/x"));
        assert_eq!(cache(&[home, ("HF_HOME", ""), ("HF_HUB_CACHE", " ")]), Path::new("/home/a/.cache/huggingface/hub"));
    }

    #[test]
    fn tokens_are_found_and_not_shown() {
        let folder = tempfile::tempdir().unwrap();
        let home = ("HF_HOME", folder.path().to_str().unwrap());
        assert_eq!(gather(&[home]).token, None);
        std::fs::write(folder.path().join("token"), "hf_filed\n").unwrap();
        assert_eq!(gather(&[home]).token, Some(HubToken("hf_filed".into())));
        let said = gather(&[home, ("HF_TOKEN", "hf_said")]);
        assert_eq!(said.token, Some(HubToken("hf_said".into())));
        assert!(!format!("{said:?}").contains("hf_said"));
        assert_eq!(gather(&[("HF_TOKEN", "two\nlines")]).token, None);
    }

    #[test]
    fn offline_is_said_as_there() {
        let offline = |value| gather(&[("HF_HUB_OFFLINE", value)]).offline;
        assert!(offline("1") && offline("true") && offline("YES") && !offline("0") && !offline("") && !offline("no"));
        assert_eq!(gather(&[("HF_ENDPOINT", "http://mirror:1/")]).endpoint, "http://mirror:1");
        assert_eq!(gather(&[]).endpoint, ENDPOINT);
    }
}
